// What the binding, the pool and the kernels of every instruction set agree on: plain data and
// function pointers. Nothing here has code of its own: an inline function would be compiled once a
// set, and the linker might keep the copy that this processor cannot run.
#pragma once

#include <cstdint>

namespace autoinv {

constexpr int kMaxN = 64;

enum class Dtype { float32 = 0, float64 = 1 };

// Flat indices of matrices that the caller must hand to torch. Grows in doubtful.cpp.
struct Doubtful {
  int64_t* index = nullptr;
  int64_t count = 0;
  int64_t capacity = 0;
  bool out_of_memory = false;
};

void add_doubtful(Doubtful& list, int64_t index);
void release_doubtful(Doubtful& list);

// A batch of n x n matrices, any strides (in elements) on input, contiguous on output.
struct Batch {
  const void* src;
  void* dst;
  int n;
  int64_t row_stride;
  int64_t column_stride;
  int dims;  // batch dimensions, outermost first; none means one matrix
  const int64_t* shape;
  const int64_t* stride;
};

// Inverts matrices first <= i < last of the batch; the doubtful ones are listed, not written.
using InvertFunction = void (*)(const Batch& batch, int64_t first, int64_t last, Doubtful& doubtful);
// dst = -X^T G X^T for contiguous (batch, n, n) operands.
using GradientFunction = void (*)(const void* x, const void* g, void* dst, int n, int64_t batch);
// Runs at least `iterations` rounds of independent FMA chains; returns the operations done.
using MeasureFmaFunction = int64_t (*)(int64_t iterations);

struct Kernels {  // of one instruction set and dtype
  InvertFunction invert;
  GradientFunction gradient;
  MeasureFmaFunction measure_fma;
};

struct KernelSet {
  const char* name;
  const char* flags;
  const Kernels* of[2];  // by Dtype
};

}  // namespace autoinv
