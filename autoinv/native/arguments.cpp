#define PY_SSIZE_T_CLEAN
#include "arguments.hpp"

namespace autoinv {

bool parse_integer(PyObject* object, int64_t& value) {
  value = PyLong_AsLongLong(object);
  return value != -1 || PyErr_Occurred() == nullptr;
}

bool parse_address(PyObject* object, const void*& address) {
  address = PyLong_AsVoidPtr(object);
  return address != nullptr || PyErr_Occurred() == nullptr;
}

bool parse_dtype(PyObject* object, Dtype& dtype) {
  int64_t value;
  if (!parse_integer(object, value)) return false;
  if (value != 0 && value != 1) {
    PyErr_Format(PyExc_ValueError, "dtype must be 0 (float32) or 1 (float64), got %lld", (long long)value);
    return false;
  }
  dtype = static_cast<Dtype>(value);
  return true;
}

bool parse_n(PyObject* object, int& n) {
  int64_t value;
  if (!parse_integer(object, value)) return false;
  if (value < 0 || value > kMaxN) {
    PyErr_Format(PyExc_ValueError, "n must be from 0 to %d, got %lld", kMaxN, (long long)value);
    return false;
  }
  n = static_cast<int>(value);
  return true;
}

bool parse_count(PyObject* object, int64_t& count) {
  if (!parse_integer(object, count)) return false;
  if (count < 0) {
    PyErr_Format(PyExc_ValueError, "batch must not be negative, got %lld", (long long)count);
    return false;
  }
  return true;
}

bool parse_threads(PyObject* object, int& threads) {
  int64_t value;
  if (!parse_integer(object, value)) return false;
  if (value < 1) {
    PyErr_Format(PyExc_ValueError, "threads must be at least 1, got %lld", (long long)value);
    return false;
  }
  threads = static_cast<int>(value < 1024 ? value : 1024);
  return true;
}

bool parse_flag(PyObject* object, bool& flag) {
  const int value = PyObject_IsTrue(object);
  flag = value == 1;
  return value >= 0;
}

bool check_addresses(const void* const* addresses, int how_many) {
  for (int i = 0; i < how_many; ++i) {
    if (addresses[i] != nullptr) continue;
    PyErr_SetString(PyExc_ValueError, "a tensor has no memory behind it (its address is 0)");
    return false;
  }
  return true;
}

bool check_argument_count(const char* function, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
  if (least <= given && given <= most) return true;
  if (least == most) PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", function, most, given);
  else PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd arguments, got %zd", function, least, most, given);
  return false;
}

static bool parse_operands(PyObject* const* args, Request& request) {
  const void* dst;
  if (!parse_address(args[0], request.batch.src) || !parse_address(args[1], dst)) return false;
  request.batch.dst = const_cast<void*>(dst);
  return parse_dtype(args[2], request.dtype);
}

static bool check_operands(const Request& request) {
  if (request.count == 0 || request.batch.n == 0) return true;  // the addresses are not used
  const void* const addresses[] = {request.batch.src, request.batch.dst};
  return check_addresses(addresses, 2);
}

bool parse_contiguous(PyObject* const* args, Request& request) {
  Batch& batch = request.batch;
  if (!parse_operands(args, request) || !parse_n(args[3], batch.n)) return false;
  if (!parse_count(args[4], request.count)) return false;
  batch.row_stride = batch.n;
  batch.column_stride = 1;
  batch.dims = 1;
  request.shape[0] = request.count;
  request.stride[0] = int64_t{batch.n} * batch.n;
  batch.shape = request.shape;
  batch.stride = request.stride;
  batch.column_major = false;
  return check_operands(request);
}

static bool parse_item(PyObject* tuple, Py_ssize_t at, int64_t& value) {
  PyObject* item = PyTuple_GetItem(tuple, at);
  return item != nullptr && parse_integer(item, value);
}

// Drops dimensions of size 1 and merges neighbours that one stride describes.
static void add_dimension(Batch& batch, int64_t* shapes, int64_t* strides, int64_t shape, int64_t stride) {
  if (shape == 1) return;
  const int last = batch.dims - 1;
  if (last >= 0 && strides[last] == shape * stride) {
    shapes[last] *= shape;
    strides[last] = stride;
    return;
  }
  shapes[batch.dims] = shape;
  strides[batch.dims] = stride;
  ++batch.dims;
}

static bool parse_batch_dims(PyObject* shape, PyObject* stride, Py_ssize_t dims, Request& request) {
  request.count = 1;
  request.batch.dims = 0;
  for (Py_ssize_t d = 0; d < dims; ++d) {
    int64_t size, step;
    if (!parse_item(shape, d, size) || !parse_item(stride, d, step)) return false;
    if (size < 0) {
      PyErr_Format(PyExc_ValueError, "batch must not be negative, got %lld", (long long)size);
      return false;
    }
    if (__builtin_mul_overflow(request.count, size, &request.count)) {
      PyErr_SetString(PyExc_ValueError, "the batch has more matrices than 64 bits can count");
      return false;
    }
    add_dimension(request.batch, request.shape, request.stride, size, step);
  }
  return true;
}

bool parse_strided(PyObject* const* args, Request& request) {
  Batch& batch = request.batch;
  PyObject *shape = args[3], *stride = args[4];
  if (!parse_operands(args, request)) return false;
  const Py_ssize_t dims = PyTuple_Size(shape);
  if (dims < 0) return false;
  const Py_ssize_t strides = PyTuple_Size(stride);
  if (strides < 0) return false;
  if (dims < 2 || dims > kMaxDims || strides != dims) {
    PyErr_Format(PyExc_ValueError, "shape and stride must have the same length, from 2 to %d, got %zd and %zd",
                 kMaxDims, dims, strides);
    return false;
  }
  PyObject* rows = PyTuple_GetItem(shape, dims - 2);
  int64_t columns;
  if (rows == nullptr || !parse_n(rows, batch.n) || !parse_item(shape, dims - 1, columns)) return false;
  if (columns != batch.n) {
    PyErr_Format(PyExc_ValueError, "matrices must be square, got %d by %lld", batch.n, (long long)columns);
    return false;
  }
  if (!parse_item(stride, dims - 2, batch.row_stride)) return false;
  if (!parse_item(stride, dims - 1, batch.column_stride)) return false;
  if (!parse_batch_dims(shape, stride, dims - 2, request)) return false;
  batch.shape = request.shape;
  batch.stride = request.stride;
  batch.column_major = false;
  request.repeated = request.count > 1 && batch.dims == 1 && request.stride[0] == 0;
  return check_operands(request);
}

}  // namespace autoinv
