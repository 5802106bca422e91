/* One pass over the records of a plain batch before a leader appends it: are they whole, and when?
 *
 * Stricter than the decoders of this extension: offset deltas must be 0, 1, 2, ..., and all numbers
 * but timestamp deltas must fit into 32 bits, because Kafka's Java reader refuses longer ones.
 * No object per record and no allocation. The twin in Python is dlog/batch/_pure_walk.py.
 */

#include "speedups.h"

enum { BUFFER, START, END, RECORD_COUNT, BASE_TIMESTAMP, ARGUMENT_COUNT };
enum { FIFTH_BYTE_MAX = 0x0F, SHIFT_MAX = 28 };
enum { NO_TIMESTAMP = -1, NULL_LENGTH = 1 /* -1 as it is encoded */ };
enum {
    USUAL_BYTES_MIN = 16, /* length 2, attributes 1, deltas 2 each, key's length 2, value's 2 */
    USUAL_DELTA_MAX = 8191, /* the largest offset delta of two bytes */
    UNLOCKED_BYTES = 4 << 20, /* beyond what a topic takes by default: other threads may run */
    KEY_ROOM = 3, /* behind a key: the value's length in two bytes, the number of headers */
};

/* Timestamps relative to the head's while the records are walked. */
typedef struct {
    int64_t base_timestamp_ms;
    int64_t none; /* the delta of a record without a timestamp */
    int64_t max;
    int64_t max_at; /* offset delta of the first record with it */
    int64_t min;
    int has_min;
} Times;

static inline const char *
read_int32(const uint8_t **at, const uint8_t *end, int64_t *number)
{
    const uint8_t *p = *at;
    if (p >= end) {
        return "a record is cut";
    }
    uint32_t value = *p++;
    if (value >= 0x80) {
        int shift = 7;
        uint8_t byte;
        value &= 0x7F;
        do {
            if (p >= end) {
                return "a record is cut";
            }
            byte = *p++;
            if (shift == SHIFT_MAX && byte > FIFTH_BYTE_MAX) {
                return "a number has more than 32 bits";
            }
            value |= (uint32_t)(byte & 0x7F) << shift;
            shift += 7;
        } while (byte >= 0x80);
    }
    *number = (int32_t)(value >> 1) ^ -(int32_t)(value & 1);
    *at = p;
    return NULL;
}

static inline const char *
skip_span(const uint8_t **at, const uint8_t *end, int64_t size_min)
{
    int64_t size;
    const char *wrong = read_int32(at, end, &size);
    if (wrong != NULL) {
        return wrong;
    }
    if (size < 0) {
        if (size < -1) {
            return "a negative length";
        }
        return size < size_min ? "a header's key is null" : NULL;
    }
    if (size > end - *at) {
        return "a record is cut";
    }
    *at += size;
    return NULL;
}

static const char *
skip_headers(const uint8_t **at, const uint8_t *end, int64_t count)
{
    if (count < 0) {
        return "a negative number of headers";
    }
    /* A header takes two bytes or more: a lie about the count ends at the end of the record. */
    for (int64_t i = 0; i < count; i++) {
        const char *wrong;
        if ((wrong = skip_span(at, end, 0)) != NULL || (wrong = skip_span(at, end, -1)) != NULL) {
            return wrong;
        }
    }
    return NULL;
}

/* Any record, slowly, with the cause of what is wrong. */
static const char *
walk_record(const uint8_t **at, const uint8_t *end, int64_t offset_delta, int64_t *timestamp_delta)
{
    int64_t length, found, header_count;
    const char *wrong = read_int32(at, end, &length);
    if (wrong != NULL) {
        return wrong;
    }
    if (length < 1 || length > end - *at) {
        return "a record is cut";
    }
    end = *at + length;
    *at += 1; /* the attributes; none are defined */
    if ((wrong = read_varint(at, end, timestamp_delta)) != NULL ||
        (wrong = read_int32(at, end, &found)) != NULL) {
        return wrong;
    }
    if (found != offset_delta) {
        return "its offset delta is not its place in the batch";
    }
    if ((wrong = skip_span(at, end, -1)) != NULL || (wrong = skip_span(at, end, -1)) != NULL ||
        (wrong = read_int32(at, end, &header_count)) != NULL) {
        return wrong;
    }
    if (header_count != 0 && (wrong = skip_headers(at, end, header_count)) != NULL) {
        return wrong;
    }
    return *at == end ? NULL : "a record is longer or shorter than it says";
}

/* A number of one or two bytes, or 1, which stands for no number: a length of -1, or a longer one. */
static inline uint32_t
read_short(const uint8_t **at)
{
    const uint8_t *p = *at;
    uint32_t value = p[0];
    if (value < 0x80) {
        *at = p + 1;
        return value;
    }
    if (p[1] >= 0x80) {
        return 1;
    }
    *at = p + 2;
    return (value & 0x7F) | ((uint32_t)p[1] << 7);
}

/* The end of a usual record, which has short numbers, a value and no headers; else NULL, and
 * `walk_record` decides. This halves what the walk of usual records costs. The first 16 bytes may be
 * read without a look at the end, and what follows a key only after one.
 */
static inline const uint8_t *
skip_usual(const uint8_t *p, const uint8_t *end, int64_t offset_delta, int64_t *timestamp_delta)
{
    if (end - p < USUAL_BYTES_MIN || offset_delta > USUAL_DELTA_MAX) {
        return NULL;
    }
    uint32_t code = read_short(&p);
    if ((code & 1) || (int64_t)(code >> 1) > end - p) {
        return NULL;
    }
    const uint8_t *record_end = p + (code >> 1);
    p++; /* the attributes */
    const uint8_t *before = p;
    code = read_short(&p);
    if (p == before) {
        return NULL;
    }
    *timestamp_delta = (int64_t)(code >> 1) ^ -(int64_t)(code & 1);
    if (read_short(&p) != (uint32_t)offset_delta << 1) {
        return NULL;
    }
    if (*p == NULL_LENGTH) {
        p++;
    } else {
        code = read_short(&p);
        if ((code & 1) || (int64_t)(code >> 1) > record_end - p - KEY_ROOM) {
            return NULL;
        }
        p += code >> 1;
    }
    code = read_short(&p);
    int is_whole = (code & 1) == 0 && (int64_t)(code >> 1) == record_end - p - 1;
    return is_whole && record_end[-1] == 0 ? record_end : NULL;
}

/* Whether the time needs more than 64 bits: the first that does is a new extreme. */
static inline int
note_time(Times *times, int64_t delta, int64_t offset_delta)
{
    int64_t timestamp_ms;
    int is_new = 0;
    if (delta > times->max || times->max_at < 0) {
        times->max = delta;
        times->max_at = offset_delta;
        is_new = 1;
    }
    if ((delta < times->min || !times->has_min) && delta != times->none) {
        times->min = delta;
        times->has_min = 1;
        is_new = 1;
    }
    return is_new && add_overflows(times->base_timestamp_ms, delta, &timestamp_ms);
}

/* The cause, and in `*record` where; NULL when all is well. */
static const char *
walk(const uint8_t *at, const uint8_t *end, int64_t count, Times *times, int64_t *record)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t delta;
        const uint8_t *next = skip_usual(at, end, i, &delta);
        if (next != NULL) {
            at = next;
        } else {
            const char *wrong = walk_record(&at, end, i, &delta);
            if (wrong != NULL) {
                *record = i;
                return wrong;
            }
        }
        if (note_time(times, delta, i)) {
            *record = i;
            return "its timestamp has more than 64 bits";
        }
    }
    *record = -1;
    return at == end ? NULL : "bytes after the last record";
}

static int
parse_numbers(PyObject *const *args, Py_ssize_t count, int64_t *numbers)
{
    if (count != ARGUMENT_COUNT) {
        PyErr_SetString(PyExc_TypeError, "five arguments are needed");
        return -1;
    }
    for (int i = START; i < ARGUMENT_COUNT; i++) {
        numbers[i] = PyLong_AsLongLong(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
refusal(PyObject *module, const char *cause, int64_t record)
{
    const ModuleState *state = PyModule_GetState(module);
    if (record < 0) {
        PyErr_SetString(state->corrupt_message_error, cause);
    } else {
        PyErr_Format(state->corrupt_message_error, "record %lld: %s", (long long)record, cause);
    }
    return NULL;
}

PyObject *
walk_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t numbers[ARGUMENT_COUNT];
    Py_buffer buffer;
    if (parse_numbers(args, count, numbers) < 0 ||
        PyObject_GetBuffer(args[BUFFER], &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (numbers[START] < 0 || numbers[START] > numbers[END] || numbers[END] > buffer.len) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, "the records are not inside the buffer");
        return NULL;
    }
    const uint8_t *data = buffer.buf;
    const int64_t base_timestamp_ms = numbers[BASE_TIMESTAMP];
    Times times = {
        .base_timestamp_ms = base_timestamp_ms,
        .none = NO_TIMESTAMP - base_timestamp_ms,
        .max = NO_TIMESTAMP - base_timestamp_ms,
        .max_at = -1,
        .min = NO_TIMESTAMP - base_timestamp_ms,
    };
    const uint8_t *first = data + numbers[START], *end = data + numbers[END];
    int64_t record;
    const char *wrong;
    if (end - first < UNLOCKED_BYTES) {
        wrong = walk(first, end, numbers[RECORD_COUNT], &times, &record);
    } else {
        Py_BEGIN_ALLOW_THREADS
        wrong = walk(first, end, numbers[RECORD_COUNT], &times, &record);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&buffer);
    if (wrong != NULL) {
        return refusal(module, wrong, record);
    }
    return Py_BuildValue("LLL", (long long)(base_timestamp_ms + times.max),
                         (long long)times.max_at, (long long)(base_timestamp_ms + times.min));
}
