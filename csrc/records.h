/* One record of a v2 batch, read in place: no Python object, no allocation.
 *
 * The layout is in docs/formats/record-batch.md. The bytes come from elsewhere and may be anything:
 * each reader returns NULL when all is well, or the cause in words, and never reads at or behind
 * `end`. `dlog.batch.records` is the slow, clear reference that this must agree with.
 */

#ifndef DLOG_RECORDS_H
#define DLOG_RECORDS_H

#include <stdint.h>

typedef struct {
    const uint8_t *data;
    int64_t size; /* -1: null */
} Span;

typedef struct {
    int64_t timestamp_delta;
    int64_t offset_delta;
    Span key;
    Span value;
    int64_t header_count;
    const uint8_t *headers; /* the first header; all of them were walked once */
    const uint8_t *end;
    int64_t whole_bytes; /* with the length in front */
} RecordView;

static inline const char *
read_varint(const uint8_t **at, const uint8_t *end, int64_t *number)
{
    const uint8_t *p = *at;
    if (p >= end) {
        return "a record is cut";
    }
    uint64_t value = *p++;
    if (value >= 0x80) {
        int shift = 7;
        uint8_t byte;
        value &= 0x7F;
        do {
            if (p >= end) {
                return "a record is cut";
            }
            byte = *p++;
            if (shift == 63 && byte > 1) {
                return "a number has more than 64 bits";
            }
            value |= (uint64_t)(byte & 0x7F) << shift;
            shift += 7;
        } while (byte >= 0x80);
    }
    *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    *at = p;
    return NULL;
}

static inline const char *
read_span(const uint8_t **at, const uint8_t *end, Span *span)
{
    const char *wrong = read_varint(at, end, &span->size);
    if (wrong != NULL) {
        return wrong;
    }
    span->data = *at;
    if (span->size < 0) {
        return span->size == -1 ? NULL : "a negative length";
    }
    if (span->size > end - *at) {
        return "a record is cut";
    }
    *at += span->size;
    return NULL;
}

static inline const char *
read_header(const uint8_t **at, const uint8_t *end, Span *key, Span *value)
{
    const char *wrong = read_span(at, end, key);
    if (wrong == NULL) {
        wrong = read_span(at, end, value);
    }
    if (wrong == NULL && key->size < 0) {
        wrong = "a header's key is null";
    }
    return wrong;
}

static inline const char *
read_fields(const uint8_t **at, const uint8_t *end, RecordView *record)
{
    const char *wrong;
    if ((wrong = read_varint(at, end, &record->timestamp_delta)) != NULL ||
        (wrong = read_varint(at, end, &record->offset_delta)) != NULL ||
        (wrong = read_span(at, end, &record->key)) != NULL ||
        (wrong = read_span(at, end, &record->value)) != NULL ||
        (wrong = read_varint(at, end, &record->header_count)) != NULL) {
        return wrong;
    }
    record->headers = *at;
    if (record->header_count < 0) {
        return "a negative number of headers";
    }
    /* A header takes two bytes or more: a lie about the count ends at the end of the record. */
    for (int64_t i = 0; i < record->header_count; i++) {
        Span key, value;
        if ((wrong = read_header(at, end, &key, &value)) != NULL) {
            return wrong;
        }
    }
    return NULL;
}

static inline const char *
read_record(const uint8_t **at, const uint8_t *end, RecordView *record)
{
    const uint8_t *start = *at;
    int64_t length;
    const char *wrong = read_varint(at, end, &length);
    if (wrong != NULL) {
        return wrong;
    }
    if (length < 1 || length > end - *at) {
        return "a record is cut";
    }
    record->end = *at + length;
    record->whole_bytes = record->end - start;
    *at += 1; /* the attributes; none are defined */
    wrong = read_fields(at, record->end, record);
    if (wrong == NULL && *at != record->end) {
        wrong = "a record is longer or shorter than it says";
    }
    return wrong;
}

/* The sum in `*sum`; whether it needs more than 64 bits. */
static inline int
add_overflows(int64_t a, int64_t b, int64_t *sum)
{
    *sum = (int64_t)((uint64_t)a + (uint64_t)b);
    return ((a ^ *sum) & (b ^ *sum)) < 0;
}

#endif
