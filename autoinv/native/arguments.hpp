// Parses and checks the arguments of a Python call.
#pragma once

#include <Python.h>

#include "kernel.hpp"

namespace autoinv {

constexpr int kMaxDims = 64;  // torch's own limit

struct Request {
  Batch batch;
  Dtype dtype;
  int64_t count;  // matrices
  int threads = 1;
  bool repeated = false;  // one matrix, expanded to `count`
  int64_t shape[kMaxDims];
  int64_t stride[kMaxDims];
};

// Each returns false with a Python exception set.
bool parse_integer(PyObject* object, int64_t& value);
bool parse_address(PyObject* object, const void*& address);
bool parse_dtype(PyObject* object, Dtype& dtype);
bool parse_n(PyObject* object, int& n);
bool parse_count(PyObject* object, int64_t& count);
bool parse_threads(PyObject* object, int& threads);
bool parse_flag(PyObject* object, bool& flag);
bool check_addresses(const void* const* addresses, int how_many);
bool check_argument_count(const char* function, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most);

// (src, dst, dtype, n, batch) and (src, dst, dtype, shape, stride)
bool parse_contiguous(PyObject* const* args, Request& request);
bool parse_strided(PyObject* const* args, Request& request);

}  // namespace autoinv
