/* One pass over the records of a plain batch before a leader appends it: are they whole, and when?
 *
 * Stricter than the decoders of this extension: offset deltas must be 0, 1, 2, ..., and all numbers
 * but timestamp deltas must fit into 32 bits, because Kafka's Java reader refuses longer ones.
 * No object per record and no allocation. The twin in Python is dlog/batch/_pure_walk.py.
 */

#include "speedups.h"

enum { BUFFER, START, END, RECORD_COUNT, BASE_TIMESTAMP, ARGUMENT_COUNT };
enum { FIFTH_BYTE_MAX = 0x0F, SHIFT_MAX = 28 };
enum { NO_TIMESTAMP = -1 };

typedef struct {
    int64_t max_timestamp_ms;
    int64_t max_at; /* offset delta of the first record with it */
    int64_t min_timestamp_ms;
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

static inline const char *
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

static inline void
note_time(Times *times, int64_t timestamp_ms, int64_t offset_delta)
{
    if (timestamp_ms > times->max_timestamp_ms || times->max_at < 0) {
        times->max_timestamp_ms = timestamp_ms;
        times->max_at = offset_delta;
    }
    if (timestamp_ms != NO_TIMESTAMP &&
        (timestamp_ms < times->min_timestamp_ms || times->min_timestamp_ms == NO_TIMESTAMP)) {
        times->min_timestamp_ms = timestamp_ms;
    }
}

/* The cause, and in `*record` where; NULL when all is well. */
static const char *
walk(const uint8_t *at, const uint8_t *end, int64_t count, int64_t base_timestamp_ms, Times *times,
     int64_t *record)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t delta, timestamp_ms;
        const char *wrong = walk_record(&at, end, i, &delta);
        *record = i;
        if (wrong == NULL && add_overflows(base_timestamp_ms, delta, &timestamp_ms)) {
            wrong = "its timestamp has more than 64 bits";
        }
        if (wrong != NULL) {
            return wrong;
        }
        note_time(times, timestamp_ms, i);
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
    Times times = {NO_TIMESTAMP, -1, NO_TIMESTAMP};
    int64_t record;
    const char *wrong = walk(data + numbers[START], data + numbers[END], numbers[RECORD_COUNT],
                             numbers[BASE_TIMESTAMP], &times, &record);
    PyBuffer_Release(&buffer);
    if (wrong != NULL) {
        return refusal(module, wrong, record);
    }
    return Py_BuildValue("LLL", (long long)times.max_timestamp_ms, (long long)times.max_at,
                         (long long)times.min_timestamp_ms);
}
