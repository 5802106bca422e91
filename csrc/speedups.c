/* The extension module `dlog.batch._speedups`; dlog/batch/_speedups.pyi says what is in it. */

#include "speedups.h"

static PyMethodDef functions[] = {
    {"decode_records", (PyCFunction)(void (*)(void))decode_records, METH_FASTCALL, NULL},
    {"decode_columns", (PyCFunction)(void (*)(void))decode_columns, METH_FASTCALL, NULL},
    {"walk_records", (PyCFunction)(void (*)(void))walk_records, METH_FASTCALL, NULL},
    {"find_record", (PyCFunction)(void (*)(void))find_record, METH_FASTCALL, NULL},
    {"murmur2", murmur2, METH_O, NULL},
    {"murmur2_rows", murmur2_rows, METH_O, NULL},
    {NULL},
};

static PyObject *
attribute_of(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

int
is_named_tuple(PyObject *type)
{
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type) ||
        ((PyTypeObject *)type)->tp_basicsize != PyTuple_Type.tp_basicsize) {
        PyErr_SetString(PyExc_TypeError, "records are made as plain named tuples only");
        return 0;
    }
    return 1;
}

static int
execute(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    state->corrupt_message_error = attribute_of("dlog.errors", "CorruptMessageError");
    if (state->corrupt_message_error == NULL) {
        return -1;
    }
    state->record_type = attribute_of("dlog.batch.records", "Record");
    if (state->record_type == NULL || !is_named_tuple(state->record_type)) {
        return -1;
    }
    PyObject *type = PyType_FromModuleAndSpec(module, &record_buffer_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int added = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return added;
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->corrupt_message_error);
    Py_VISIT(state->record_type);
    return 0;
}

static int
clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->corrupt_message_error);
    Py_CLEAR(state->record_type);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_speedups",
    .m_doc = "The compiled twin of dlog.batch._pure.",
    .m_size = sizeof(ModuleState),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&definition);
}
