package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func franz(asked request) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := []kgo.Opt{
		kgo.SeedBrokers(asked.Bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryTimeout(patience),
		kgo.FetchMaxWait(500 * time.Millisecond),
	}
	switch asked.Operation {
	case "produce":
		codecs := map[string]kgo.CompressionCodec{
			"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
			"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
		}
		options = append(options, kgo.ProducerBatchCompression(codecs[asked.Codec]))
		if asked.Transactional != "" {
			options = append(options, kgo.TransactionalID(asked.Transactional))
		} else if !asked.Idempotent {
			options = append(options, kgo.DisableIdempotentWrite())
		}
		if asked.Group != "" {
			return franzProcess(ctx, options, asked)
		}
	case "fetch":
		place := map[string]map[int32]kgo.Offset{asked.Topic: {asked.Partition: kgo.NewOffset().At(asked.Start)}}
		options = append(options, kgo.ConsumePartitions(place))
		if asked.Committed {
			options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
		}
	case "group":
		options = append(options, kgo.ConsumerGroup(asked.Group), kgo.ConsumeTopics(asked.Topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
		if asked.ByServer {
			options = append(options, kgo.ServerSideBalancer())
		}
	}
	found, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer found.CloseAllowingRebalance()
	admin := kadm.NewClient(found)
	switch asked.Operation {
	case "partitions":
		topics, err := admin.ListTopics(ctx, asked.Topic)
		if err != nil {
			return nil, err
		}
		return len(topics[asked.Topic].Partitions), topics[asked.Topic].Err
	case "produce":
		return franzProduce(ctx, found, asked)
	case "fetch":
		return franzPoll(ctx, found, asked.Count)
	case "group":
		if _, err := franzPoll(ctx, found, asked.Count); err != nil {
			return nil, err
		}
		if err := found.CommitUncommittedOffsets(ctx); err != nil {
			return nil, err
		}
		offsets, err := admin.FetchOffsets(ctx, asked.Group)
		if err != nil {
			return nil, err
		}
		one, _ := offsets.Lookup(asked.Topic, 0)
		return one.At, one.Err
	case "bounds":
		first, err := admin.ListStartOffsets(ctx, asked.Topic)
		if err != nil {
			return nil, err
		}
		end, err := admin.ListEndOffsets(ctx, asked.Topic)
		if err != nil {
			return nil, err
		}
		one, _ := first.Lookup(asked.Topic, asked.Partition)
		other, _ := end.Lookup(asked.Topic, asked.Partition)
		return []int64{one.Offset, other.Offset}, firstError(one.Err, other.Err)
	case "offset_at":
		offsets, err := admin.ListOffsetsAfterMilli(ctx, asked.TimeMs, asked.Topic)
		if err != nil {
			return nil, err
		}
		one, _ := offsets.Lookup(asked.Topic, asked.Partition)
		return one.Offset, one.Err
	case "create_topic":
		answer, err := admin.CreateTopic(ctx, asked.Partitions, -1, nil, asked.Topic)
		return nil, firstError(err, answer.Err)
	case "add_partitions":
		answers, err := admin.UpdatePartitions(ctx, int(asked.Partitions), asked.Topic)
		return nil, firstError(err, answers[asked.Topic].Err)
	case "delete_topic":
		answer, err := admin.DeleteTopic(ctx, asked.Topic)
		return nil, firstError(err, answer.Err)
	case "config":
		answers, err := admin.DescribeTopicConfigs(ctx, asked.Topic)
		if err != nil {
			return nil, err
		}
		answer, err := answers.On(asked.Topic, nil)
		values := map[string]string{}
		for _, one := range answer.Configs {
			values[one.Key] = one.MaybeValue()
		}
		return values, firstError(err, answer.Err)
	case "set_config":
		change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: asked.Key, Value: &asked.Value}}
		answers, err := admin.AlterTopicConfigs(ctx, change, asked.Topic)
		if err != nil {
			return nil, err
		}
		answer, err := answers.On(asked.Topic, nil)
		return nil, firstError(err, answer.Err)
	}
	return nil, fmt.Errorf("unknown operation %s", asked.Operation)
}

func firstError(errors ...error) error {
	for _, one := range errors {
		if one != nil {
			return one
		}
	}
	return nil
}

func franzProduce(ctx context.Context, found *kgo.Client, asked request) (any, error) {
	if asked.Transactional != "" {
		if err := found.BeginTransaction(); err != nil {
			return nil, err
		}
	}
	results := found.ProduceSync(ctx, franzRecords(asked)...)
	if err := results.FirstErr(); err != nil {
		return nil, err
	}
	if asked.Transactional != "" {
		if err := found.EndTransaction(ctx, kgo.TransactionEndTry(asked.Commit)); err != nil {
			return nil, err
		}
	}
	return franzOffsets(results), nil
}

func franzRecords(asked request) []*kgo.Record {
	var sent []*kgo.Record
	for _, one := range asked.Records {
		made := &kgo.Record{Topic: asked.Topic, Partition: asked.Partition, Key: one.Key, Value: one.Value,
			Timestamp: time.UnixMilli(one.TimeMs)}
		for _, pair := range one.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: pair.Name, Value: pair.Value})
		}
		sent = append(sent, made)
	}
	return sent
}

func franzOffsets(results kgo.ProduceResults) []int64 {
	offsets := []int64{}
	for _, one := range results {
		offsets = append(offsets, one.Record.Offset)
	}
	return offsets
}

// The client commits only offsets of what it has read as a member of the group.
func franzProcess(ctx context.Context, options []kgo.Opt, asked request) (any, error) {
	options = append(options, kgo.ConsumerGroup(asked.Group), kgo.ConsumeTopics(asked.Source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return nil, err
	}
	defer session.CloseAllowingRebalance()
	for read := int64(0); read < asked.SourceOffset; {
		fetches := session.PollRecords(ctx, int(asked.SourceOffset-read))
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		read += int64(fetches.NumRecords())
	}
	if err := session.Begin(); err != nil {
		return nil, err
	}
	results := session.ProduceSync(ctx, franzRecords(asked)...)
	if err := results.FirstErr(); err != nil {
		return nil, err
	}
	committed, err := session.End(ctx, kgo.TransactionEndTry(asked.Commit))
	if err == nil && committed != asked.Commit {
		err = fmt.Errorf("the transaction was aborted")
	}
	return franzOffsets(results), err
}

func franzPoll(ctx context.Context, found *kgo.Client, count int) ([]record, error) {
	got := []record{}
	for len(got) < count {
		fetches := found.PollRecords(ctx, count-len(got))
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		for _, one := range fetches.Records() {
			made := record{Key: one.Key, Value: one.Value, TimeMs: one.Timestamp.UnixMilli(), Offset: one.Offset}
			for _, pair := range one.Headers {
				made.Headers = append(made.Headers, header{pair.Key, pair.Value})
			}
			got = append(got, made)
		}
	}
	return got, nil
}
