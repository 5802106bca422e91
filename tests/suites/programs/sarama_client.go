// Old sarama against a server: reads a plan as JSON from standard input, writes what it saw.
// Without times in the plan it only produces.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"SARAMA"
)

type header struct {
	Name  string  `json:"name"`
	Value *string `json:"value"`
}

type record struct {
	Timestamp int64    `json:"timestamp"`
	Key       *string  `json:"key"`
	Value     *string  `json:"value"`
	Headers   []header `json:"headers"`
}

type plan struct {
	Bootstrap string     `json:"bootstrap"`
	Topic     string     `json:"topic"`
	Codec     string     `json:"codec"`
	Batches   [][]record `json:"batches"`
	Times     []int64    `json:"times"`
}

type seen struct {
	Read    []record `json:"read"`
	Offsets []int64  `json:"offsets"`
}

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func bytes(text *string) []byte {
	if text == nil {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(*text)
	check(err)
	return data
}

func encoder(text *string) sarama.Encoder {
	if text == nil {
		return nil
	}
	return sarama.ByteEncoder(bytes(text))
}

func text(data []byte) *string {
	if data == nil {
		return nil
	}
	encoded := base64.StdEncoding.EncodeToString(data)
	return &encoded
}

func produce(client sarama.Client, wanted plan) {
	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	for _, batch := range wanted.Batches {
		messages := make([]*sarama.ProducerMessage, 0, len(batch))
		for _, each := range batch {
			message := &sarama.ProducerMessage{Topic: wanted.Topic, Partition: 0,
				Timestamp: time.Unix(each.Timestamp/1000, each.Timestamp%1000*1000000)}
			for _, one := range each.Headers {
				message.Headers = append(message.Headers,
					sarama.RecordHeader{Key: []byte(one.Name), Value: bytes(one.Value)})
			}
			// An interface that holds a nil is not nil.
			if key := encoder(each.Key); key != nil {
				message.Key = key
			}
			if value := encoder(each.Value); value != nil {
				message.Value = value
			}
			messages = append(messages, message)
		}
		check(producer.SendMessages(messages))
	}
}

func read(client sarama.Client, wanted plan, count int) []record {
	consumer, err := sarama.NewConsumerFromClient(client)
	check(err)
	partition, err := consumer.ConsumePartition(wanted.Topic, 0, 0)
	check(err)
	found := make([]record, 0, count)
	for len(found) < count {
		select {
		case message := <-partition.Messages():
			stamp := message.Timestamp.UnixNano() / 1000000
			headers := make([]header, 0, len(message.Headers))
			for _, one := range message.Headers {
				headers = append(headers, header{string(one.Key), text(one.Value)})
			}
			found = append(found, record{stamp, text(message.Key), text(message.Value), headers})
		case <-time.After(30 * time.Second):
			check(fmt.Errorf("%d of %d records came", len(found), count))
		}
	}
	return found
}

func main() {
	var wanted plan
	check(json.NewDecoder(os.Stdin).Decode(&wanted))
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0
	config.Producer.Compression = codecs[wanted.Codec]
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = 1000000
	// What is sent together goes into one batch.
	config.Producer.Flush.Frequency = 200 * time.Millisecond
	config.Producer.Flush.Bytes = 10 << 20
	client, err := sarama.NewClient([]string{wanted.Bootstrap}, config)
	check(err)
	count := 0
	for _, batch := range wanted.Batches {
		count += len(batch)
	}
	produce(client, wanted)
	var result seen
	if len(wanted.Times) > 0 {
		result.Read = read(client, wanted, count)
	}
	for _, each := range wanted.Times {
		offset, err := client.GetOffset(wanted.Topic, 0, each)
		check(err)
		result.Offsets = append(result.Offsets, offset)
	}
	check(json.NewEncoder(os.Stdout).Encode(result))
}
