// Old kafkajs against a server: reads a plan as JSON from standard input, writes what it saw.
// It reads only in groups, so that the records are read back by somebody else.
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const bytes = (text) => (text === null ? null : Buffer.from(text, "base64"));

async function main(plan) {
  const kafka = new Kafka({ brokers: [plan.bootstrap], logLevel: logLevel.ERROR });
  const producer = kafka.producer({ idempotent: false });
  await producer.connect();
  for (const batch of plan.batches) {
    await producer.send({
      topic: plan.topic,
      acks: -1,
      compression: plan.codec === "gzip" ? CompressionTypes.GZIP : CompressionTypes.None,
      messages: batch.map((each) => ({
        partition: 0,
        timestamp: String(each.timestamp),
        key: bytes(each.key),
        value: bytes(each.value),
        headers: Object.fromEntries(each.headers.map((one) => [one.name, bytes(one.value)])),
      })),
    });
  }
  await producer.disconnect();
  const admin = kafka.admin();
  await admin.connect();
  const offsets = [];
  for (const time of plan.times) {
    const found = await admin.fetchTopicOffsetsByTimestamp(plan.topic, time);
    offsets.push(Number(found[0].offset));
  }
  await admin.disconnect();
  return { read: null, offsets };
}

let input = "";
process.stdin.on("data", (part) => (input += part));
process.stdin.on("end", () =>
  main(JSON.parse(input)).then(
    (seen) => process.stdout.write(JSON.stringify(seen)),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  ),
);
