package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

func saramaRun(asked request) (any, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.ClientID = "sarama"
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	config.Metadata.AllowAutoTopicCreation = false
	config.Admin.Timeout = patience
	config.Metadata.Timeout = patience
	config.Producer.Transaction.Retry.Max = 2
	config.Admin.Retry.Max = 2
	if asked.Committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	if asked.Idempotent || asked.Transactional != "" {
		config.Producer.Idempotent = true
		config.Producer.Transaction.ID = asked.Transactional
		config.Net.MaxOpenRequests = 1
	}
	brokers := []string{asked.Bootstrap}
	switch asked.Operation {
	case "produce":
		if err := config.Producer.Compression.UnmarshalText([]byte(asked.Codec)); err != nil {
			return nil, err
		}
		return saramaProduce(brokers, config, asked)
	case "fetch":
		consumer, err := sarama.NewConsumer(brokers, config)
		if err != nil {
			return nil, err
		}
		defer consumer.Close()
		part, err := consumer.ConsumePartition(asked.Topic, asked.Partition, asked.Start)
		if err != nil {
			return nil, err
		}
		defer part.Close()
		return saramaRead(part.Messages(), part.Errors(), asked.Count)
	case "group":
		return saramaGroup(brokers, config, asked)
	case "partitions", "bounds", "offset_at":
		return saramaAsk(brokers, config, asked)
	}
	admin, err := sarama.NewClusterAdmin(brokers, config)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	switch asked.Operation {
	case "create_topic":
		detail := &sarama.TopicDetail{NumPartitions: asked.Partitions, ReplicationFactor: -1}
		return nil, admin.CreateTopic(asked.Topic, detail, false)
	case "add_partitions":
		return nil, admin.CreatePartitions(asked.Topic, asked.Partitions, nil, false)
	case "delete_topic":
		return nil, admin.DeleteTopic(asked.Topic)
	case "config":
		entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: asked.Topic})
		values := map[string]string{}
		for _, one := range entries {
			values[one.Name] = one.Value
		}
		return values, err
	case "set_config":
		change := map[string]sarama.IncrementalAlterConfigsEntry{
			asked.Key: {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &asked.Value},
		}
		return nil, admin.IncrementalAlterConfig(sarama.TopicResource, asked.Topic, change, false)
	}
	return nil, fmt.Errorf("unknown operation %s", asked.Operation)
}

func saramaAsk(brokers []string, config *sarama.Config, asked request) (any, error) {
	found, err := sarama.NewClient(brokers, config)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	switch asked.Operation {
	case "partitions":
		numbers, err := found.Partitions(asked.Topic)
		return len(numbers), err
	case "offset_at":
		return first(found.GetOffset(asked.Topic, asked.Partition, asked.TimeMs))
	}
	start, err := found.GetOffset(asked.Topic, asked.Partition, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	end, err := found.GetOffset(asked.Topic, asked.Partition, sarama.OffsetNewest)
	return []int64{start, end}, err
}

func first(offset int64, err error) (any, error) {
	return offset, err
}

func saramaProduce(brokers []string, config *sarama.Config, asked request) (any, error) {
	producer, err := sarama.NewSyncProducer(brokers, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if asked.Transactional != "" {
		if err := producer.BeginTxn(); err != nil {
			return nil, err
		}
	}
	var sent []*sarama.ProducerMessage
	for _, one := range asked.Records {
		made := &sarama.ProducerMessage{Topic: asked.Topic, Partition: asked.Partition,
			Timestamp: time.UnixMilli(one.TimeMs)}
		if one.Key != nil {
			made.Key = sarama.ByteEncoder(one.Key)
		}
		if one.Value != nil {
			made.Value = sarama.ByteEncoder(one.Value)
		}
		for _, pair := range one.Headers {
			made.Headers = append(made.Headers, sarama.RecordHeader{Key: []byte(pair.Name), Value: pair.Value})
		}
		sent = append(sent, made)
	}
	if err := producer.SendMessages(sent); err != nil {
		var failed sarama.ProducerErrors
		if errors.As(err, &failed) && len(failed) > 0 {
			return nil, failed[0].Err
		}
		return nil, err
	}
	if asked.Group != "" {
		offset := &sarama.PartitionOffsetMetadata{Offset: asked.SourceOffset, LeaderEpoch: -1}
		offsets := map[string][]*sarama.PartitionOffsetMetadata{asked.Source: {offset}}
		if err := producer.AddOffsetsToTxn(offsets, asked.Group); err != nil {
			return nil, err
		}
	}
	if asked.Transactional != "" {
		end := producer.AbortTxn
		if asked.Commit {
			end = producer.CommitTxn
		}
		if err := end(); err != nil {
			return nil, err
		}
	}
	offsets := []int64{}
	for _, one := range sent {
		offsets = append(offsets, one.Offset)
	}
	return offsets, nil
}

func saramaRead(
	messages <-chan *sarama.ConsumerMessage, failures <-chan *sarama.ConsumerError, count int,
) ([]record, error) {
	got := []record{}
	late := time.After(patience)
	for len(got) < count {
		select {
		case one := <-messages:
			if one == nil {
				return nil, errors.New("the consumer ended")
			}
			made := record{Key: one.Key, Value: one.Value, TimeMs: one.Timestamp.UnixMilli(), Offset: one.Offset}
			for _, pair := range one.Headers {
				made.Headers = append(made.Headers, header{string(pair.Key), pair.Value})
			}
			got = append(got, made)
		case failed := <-failures:
			return nil, failed.Err
		case <-late:
			return nil, fmt.Errorf("%d of %d records in time", len(got), count)
		}
	}
	return got, nil
}

type groupReader struct {
	left int
	done context.CancelFunc
}

func (*groupReader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*groupReader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (reader *groupReader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for one := range claim.Messages() {
		session.MarkMessage(one, "")
		if reader.left--; reader.left == 0 {
			session.Commit()
			reader.done()
		}
	}
	return nil
}

func saramaGroup(brokers []string, config *sarama.Config, asked request) (any, error) {
	group, err := sarama.NewConsumerGroup(brokers, asked.Group, config)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := group.Consume(ctx, []string{asked.Topic}, &groupReader{asked.Count, cancel}); err != nil {
		return nil, err
	}
	admin, err := sarama.NewClusterAdmin(brokers, config)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	answer, err := admin.ListConsumerGroupOffsets(asked.Group, map[string][]int32{asked.Topic: {0}})
	if err != nil {
		return nil, err
	}
	block := answer.GetBlock(asked.Topic, 0)
	if block == nil {
		return nil, errors.New("no committed offset")
	}
	return block.Offset, nil
}
