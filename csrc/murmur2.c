/* murmur2 as Kafka's clients hash keys (org.apache.kafka.common.utils.Utils.murmur2). */

#include "speedups.h"

#define SEED 0x9747b28cU
#define M 0x5bd1e995U

int32_t
murmur2_of(const uint8_t *data, Py_ssize_t size)
{
    uint32_t h = SEED ^ (uint32_t)size;
    Py_ssize_t whole = size & ~(Py_ssize_t)3;
    for (Py_ssize_t i = 0; i < whole; i += 4) {
        uint32_t k = (uint32_t)data[i] | (uint32_t)data[i + 1] << 8 | (uint32_t)data[i + 2] << 16 |
                     (uint32_t)data[i + 3] << 24;
        k *= M;
        k ^= k >> 24;
        h = h * M ^ k * M;
    }
    switch (size & 3) {
    case 3:
        h ^= (uint32_t)data[whole + 2] << 16; /* fall through */
    case 2:
        h ^= (uint32_t)data[whole + 1] << 8; /* fall through */
    case 1:
        h = (h ^ data[whole]) * M;
    }
    h = (h ^ h >> 13) * M;
    return (int32_t)(h ^ h >> 15);
}

PyObject *
murmur2(PyObject *Py_UNUSED(module), PyObject *data)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int32_t hash = murmur2_of(buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    return PyLong_FromLong(hash);
}
