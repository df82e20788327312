// What the binding, the pool and the kernels of every instruction set share: plain data and function
// pointers. No function is defined here: an inline function would be compiled once per instruction
// set, and the linker might keep a copy that this processor cannot execute.
#pragma once

#include <cstdint>

namespace autoinv {

constexpr int kMaxN = 64;

enum class Dtype { float32 = 0, float64 = 1 };

// Flat indices of the matrices that need fallback, which the caller must compute with torch: a pivot is
// not clearly above rounding or out of range, or a result is too large or not finite. See fallback.cpp.
struct FallbackList {
  int64_t* index = nullptr;
  int64_t count = 0;
  int64_t capacity = 0;
  bool out_of_memory = false;
};

void add_fallback(FallbackList& list, int64_t index);
void release_fallback(FallbackList& list);

// A batch of n x n matrices with any strides (in elements) on input, one behind the other on output.
struct Batch {
  const void* src;
  void* dst;
  int n;
  int64_t row_stride;
  int64_t column_stride;
  int dims;  // batch dimensions, outermost first; none means one matrix
  const int64_t* shape;
  const int64_t* stride;
  bool column_major;  // whether the result's matrices are; else they are row-major
};

// Processes matrices first <= i < last of the batch. Those that need fallback are listed and their
// results not written.
using BatchFunction = void (*)(const Batch& batch, int64_t first, int64_t last, FallbackList& fallback);
// dst = -X^T G X^T for contiguous (batch, n, n) operands.
using GradientFunction = void (*)(const void* x, const void* g, void* dst, int n, int64_t batch);
// Runs at least `iterations` rounds of independent FMA chains; returns the number of operations done.
using MeasureFmaFunction = int64_t (*)(int64_t iterations);

// The kernels' table, one line a kernel: its type and its name. The kernel is a function template of
// that name over the dtype, in the operation's header, which kernels.cpp includes.
#define AUTOINV_KERNEL_TABLE(KERNEL)     \
  KERNEL(BatchFunction, inv)             \
  KERNEL(GradientFunction, inv_gradient) \
  KERNEL(MeasureFmaFunction, measure_fma)

#define AUTOINV_KERNEL_FIELD(Function, name) Function name;
struct Kernels {  // of one instruction set and dtype
  AUTOINV_KERNEL_TABLE(AUTOINV_KERNEL_FIELD)
};
#undef AUTOINV_KERNEL_FIELD

struct KernelSet {
  const char* name;
  const char* flags;
  const Kernels* of[2];  // by Dtype
};

}  // namespace autoinv
