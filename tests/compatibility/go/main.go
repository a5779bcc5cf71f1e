// Runs one operation of a Kafka client per line of input, a JSON object, and answers each with one line.
//
// The first argument names the client: franz-go or Sarama.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

const patience = 8 * time.Second

type header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

type record struct {
	Key     []byte   `json:"key"`
	Value   []byte   `json:"value"`
	Headers []header `json:"headers"`
	TimeMs  int64    `json:"time_ms"`
	Offset  int64    `json:"offset"`
}

type request struct {
	Operation     string   `json:"operation"`
	Bootstrap     string   `json:"bootstrap"`
	Topic         string   `json:"topic"`
	Partition     int32    `json:"partition"`
	Records       []record `json:"records"`
	Codec         string   `json:"codec"`
	Idempotent    bool     `json:"idempotent"`
	Transactional string   `json:"transactional_id"`
	Commit        bool     `json:"commit"`
	Committed     bool     `json:"read_committed"`
	Start         int64    `json:"start"`
	Count         int      `json:"count"`
	TimeMs        int64    `json:"time_ms"`
	Group         string   `json:"group"`
	ByServer      bool     `json:"by_server"`
	Partitions    int32    `json:"partitions"`
	Key           string   `json:"key"`
	Value         string   `json:"value"`
	Source        string   `json:"source"`
	SourceOffset  int64    `json:"source_offset"`
}

// A client answers one request with a value that becomes JSON.
type client func(request) (any, error)

func main() {
	run, known := map[string]client{"franz-go": franz, "Sarama": saramaRun}[os.Args[1]]
	if !known {
		fmt.Fprintln(os.Stderr, "unknown client", os.Args[1])
		os.Exit(2)
	}
	lines := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		found, err := run(asked)
		if err != nil {
			out.Encode(map[string]any{"error": err.Error()})
		} else {
			out.Encode(map[string]any{"result": found})
		}
	}
}
