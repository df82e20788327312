// The Python module autoinv.native._native: takes addresses and sizes, returns the indices of the
// matrices that need fallback. It uses the stable ABI and no libtorch, so that one build serves every
// version of Python and torch.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>

#include "arguments.hpp"
#include "isa.hpp"
#include "kernel.hpp"
#include "pool.hpp"

namespace autoinv {
namespace {

// Calls estimated above this release the GIL; for shorter ones, releasing costs more than it gains.
constexpr double kReleaseGilAboveNs = 50e3;

double estimated_ns(int n, int64_t count) { return double(count) * (5 + 0.2 * n * n * n); }

// New reference: None, or the flat indices as a list. Releases `fallback`.
PyObject* to_python(FallbackList& fallback) {
  PyObject* result = nullptr;
  if (fallback.out_of_memory) {
    PyErr_NoMemory();
  } else if (fallback.count == 0) {
    Py_INCREF(Py_None);
    result = Py_None;
  } else {
    result = PyList_New(static_cast<Py_ssize_t>(fallback.count));
    for (int64_t i = 0; result != nullptr && i < fallback.count; ++i) {
      PyObject* index = PyLong_FromLongLong(fallback.index[i]);
      if (index == nullptr || PyList_SetItem(result, static_cast<Py_ssize_t>(i), index) < 0) {
        Py_DECREF(result);
        result = nullptr;
      }
    }
  }
  release_fallback(fallback);
  return result;
}

// Inverts the one matrix of an expanded batch and copies the result to every place.
void invert_repeated(BatchFunction invert, const Request& request, FallbackList& fallback) {
  invert(request.batch, 0, 1, fallback);
  if (fallback.count != 0) {
    for (int64_t i = 1; i < request.count; ++i) add_fallback(fallback, i);
    return;
  }
  const size_t bytes = size_t(request.batch.n) * request.batch.n * (request.dtype == Dtype::float32 ? 4 : 8);
  char* dst = static_cast<char*>(request.batch.dst);
  for (int64_t i = 1; i < request.count; ++i) std::memcpy(dst + size_t(i) * bytes, dst, bytes);
}

void invert(const Request& request, FallbackList& fallback) {
  const BatchFunction invert = current_set().of[static_cast<int>(request.dtype)]->inv;
  if (request.repeated) {
    invert_repeated(invert, request, fallback);
  } else if (request.threads > 1) {
    run_in_parallel(invert, request.batch, request.count, request.threads, fallback);
  } else {
    invert(request.batch, 0, request.count, fallback);
  }
}

PyObject* run(const Request& request) {
  FallbackList fallback;
  if (request.batch.n == 0 || request.count == 0) return to_python(fallback);
  if (request.threads > 1 || estimated_ns(request.batch.n, request.count) > kReleaseGilAboveNs) {
    PyThreadState* state = PyEval_SaveThread();
    invert(request, fallback);
    PyEval_RestoreThread(state);
  } else {
    invert(request, fallback);
  }
  return to_python(fallback);
}

using Parse = bool (*)(PyObject* const* args, Request& request);

// What `parse` takes, then `threads` for a parallel call, then an optional flag.
PyObject* parse_and_run(const char* function, Parse parse, bool parallel, PyObject* const* args, Py_ssize_t count) {
  Request request;
  const Py_ssize_t least = parallel ? 6 : 5;
  if (!check_argument_count(function, count, least, least + 1) || !parse(args, request)) return nullptr;
  if (parallel && !parse_threads(args[5], request.threads)) return nullptr;
  if (count > least && !parse_flag(args[least], request.batch.column_major)) return nullptr;
  return run(request);
}

PyObject* inv(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return parse_and_run("inv", parse_contiguous, false, args, count);
}

PyObject* inv_strided(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return parse_and_run("inv_strided", parse_strided, false, args, count);
}

PyObject* inv_parallel(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return parse_and_run("inv_parallel", parse_contiguous, true, args, count);
}

PyObject* inv_parallel_strided(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return parse_and_run("inv_parallel_strided", parse_strided, true, args, count);
}

// (x, g, dst, dtype, n, batch)
PyObject* gradient(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const void* addresses[3];
  Dtype dtype;
  int n;
  int64_t batch;
  if (!check_argument_count("gradient", count, 6, 6)) return nullptr;
  for (int i = 0; i < 3; ++i) {
    if (!parse_address(args[i], addresses[i])) return nullptr;
  }
  if (!parse_dtype(args[3], dtype) || !parse_n(args[4], n) || !parse_count(args[5], batch)) return nullptr;
  if (n == 0 || batch == 0) Py_RETURN_NONE;
  if (!check_addresses(addresses, 3)) return nullptr;
  const GradientFunction function = current_set().of[static_cast<int>(dtype)]->inv_gradient;
  PyThreadState* state = estimated_ns(n, batch) > kReleaseGilAboveNs ? PyEval_SaveThread() : nullptr;
  function(addresses[0], addresses[1], const_cast<void*>(addresses[2]), n, batch);
  if (state != nullptr) PyEval_RestoreThread(state);
  Py_RETURN_NONE;
}

// (dtype, iterations)
PyObject* measure_fma(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Dtype dtype;
  int64_t iterations;
  if (!check_argument_count("measure_fma", count, 2, 2)) return nullptr;
  if (!parse_dtype(args[0], dtype) || !parse_integer(args[1], iterations)) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  const int64_t operations = current_set().of[static_cast<int>(dtype)]->measure_fma(iterations);
  PyEval_RestoreThread(state);
  return PyLong_FromLongLong(operations);
}

PyObject* isa(PyObject*, PyObject*) { return PyUnicode_FromString(current_set().name); }

PyObject* isas(PyObject*, PyObject*) {
  const SetList list = runnable_sets();
  PyObject* names = PyList_New(list.count);
  for (int i = 0; names != nullptr && i < list.count; ++i) {
    PyObject* name = PyUnicode_FromString(list.sets[i]->name);
    if (name == nullptr || PyList_SetItem(names, i, name) < 0) {
      Py_DECREF(names);
      return nullptr;
    }
  }
  return names;
}

PyObject* use_isa(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8AndSize(name, nullptr);
  if (text == nullptr) return nullptr;
  if (!use_set(text)) {
    PyErr_Format(PyExc_ValueError, "this machine cannot run an instruction set called %R", name);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* build(PyObject*, PyObject*) {
  PyObject* facts = Py_BuildValue("{s:s,s:s}", "compiler", AUTOINV_COMPILER, "sources", AUTOINV_SOURCES);
  const SetList list = compiled_sets();
  for (int i = 0; facts != nullptr && i < list.count; ++i) {
    PyObject* flags = PyUnicode_FromString(list.sets[i]->flags);
    const bool stored = flags != nullptr && PyDict_SetItemString(facts, list.sets[i]->name, flags) == 0;
    Py_XDECREF(flags);
    if (!stored) {
      Py_DECREF(facts);
      return nullptr;
    }
  }
  return facts;
}

template <class Function>
PyCFunction erase(Function function) {  // METH_FASTCALL functions have another signature
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

#define AUTOINV_RETURNS_FALLBACK " -> None, or the flat indices of the matrices that need fallback"
PyMethodDef methods[] = {
    {"inv", erase(inv), METH_FASTCALL, "inv(src, dst, dtype, n, batch[, column_major])" AUTOINV_RETURNS_FALLBACK},
    {"inv_strided", erase(inv_strided), METH_FASTCALL,
     "inv_strided(src, dst, dtype, shape, stride[, column_major])" AUTOINV_RETURNS_FALLBACK},
    {"inv_parallel", erase(inv_parallel), METH_FASTCALL,
     "inv_parallel(src, dst, dtype, n, batch, threads[, column_major])" AUTOINV_RETURNS_FALLBACK},
    {"inv_parallel_strided", erase(inv_parallel_strided), METH_FASTCALL,
     "inv_parallel_strided(src, dst, dtype, shape, stride, threads[, column_major])" AUTOINV_RETURNS_FALLBACK},
    {"gradient", erase(gradient), METH_FASTCALL, "gradient(x, g, dst, dtype, n, batch): dst = -X^T G X^T"},
    {"measure_fma", erase(measure_fma), METH_FASTCALL, "measure_fma(dtype, iterations) -> operations done"},
    {"isa", isa, METH_NOARGS, "isa() -> the instruction set in use"},
    {"isas", isas, METH_NOARGS, "isas() -> the compiled instruction sets that this machine can run"},
    {"use_isa", use_isa, METH_O, "use_isa(name): use that instruction set from now on"},
    {"build", build, METH_NOARGS, "build() -> compiler, hash of the sources, and flags of each instruction set"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "SIMD kernels for batches of small matrices.", 0, methods, nullptr, nullptr,
    nullptr, nullptr,
};

}  // namespace
}  // namespace autoinv

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&autoinv::definition); }
