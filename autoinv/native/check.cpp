// The kernels' own test, run by scripts/check_native; not part of the extension. Covers every
// instruction set that this machine can run, every n, batches from empty to two full blocks and one
// matrix more, operands next to a guard page on either side, and odd strides.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>

#include "isa.hpp"
#include "pool.hpp"

namespace {
bool no_memory = false;
}

// The library's own, but that it can be made to fail.
void* operator new(size_t bytes) {
  void* memory = no_memory ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using autoinv::Batch;
using autoinv::FallbackList;

// Memory between two guard pages; `at_end` decides which of them it adjoins.
class Guarded {
 public:
  Guarded(size_t bytes, bool at_end) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    inside_ = (bytes + page) / page * page;
    whole_ = static_cast<char*>(mmap(nullptr, inside_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (whole_ == MAP_FAILED || mprotect(whole_ + page, inside_, PROT_READ | PROT_WRITE) != 0) std::abort();
    data_ = whole_ + page + (at_end ? inside_ - bytes : 0);
    mapped_ = inside_ + 2 * page;
  }
  ~Guarded() { munmap(whole_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  size_t inside_, mapped_;
  char *whole_, *data_;
};

int failures = 0;

void fail(const char* set, const char* what, int n, long batch) {
  if (++failures <= 20) std::printf("FAILED %s: %s, n = %d, batch = %ld\n", set, what, n, batch);
}

double uniform() { return std::rand() / double(RAND_MAX) - 0.5; }

// The strides of a batch: from matrix to matrix, row to row and column to column.
struct Layout {
  const char* name;
  int64_t matrix, row, column;
  int64_t extent(int n, int64_t batch) const {
    return batch == 0 || n == 0 ? 0 : (batch - 1) * matrix + (n - 1) * (row + column) + 1;
  }
};

template <class T>
bool is_inverse(const T* a, const Layout& layout, const T* x, int n, int64_t i, bool column_major) {
  const int down = column_major ? 1 : n, right = column_major ? n : 1;
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) {
      double sum = r == c ? -1 : 0;
      for (int k = 0; k < n; ++k) {
        sum += double(a[i * layout.matrix + r * layout.row + k * layout.column]) * double(x[i * n * n + k * down + c * right]);
      }
      if (!(std::fabs(sum) < (sizeof(T) == 4 ? 1e-4 : 1e-12))) return false;
    }
  }
  return true;
}

template <class T>
void check_inverse(const autoinv::KernelSet& set, int n, int64_t batch, const Layout& layout, bool at_end,
                   int threads, bool column_major = false) {
  Guarded source(size_t(layout.extent(n, batch)) * sizeof(T), at_end);
  Guarded target(size_t(batch) * n * n * sizeof(T), at_end);
  T *a = source.as<T>(), *x = target.as<T>();
  for (int64_t e = 0; e < layout.extent(n, batch); ++e) a[e] = T(uniform());
  for (int64_t i = 0; i < batch; ++i) {
    for (int r = 0; r < n; ++r) a[i * layout.matrix + r * (layout.row + layout.column)] += T(n + 1);
  }
  const int64_t singular = batch > 2 ? batch / 2 : -1;
  for (int c = 0; singular >= 0 && c < n; ++c) a[singular * layout.matrix + c * layout.column] = 0;
  for (int64_t e = 0; e < batch * n * n; ++e) x[e] = 7;

  const Batch operands = {a, x, n, layout.row, layout.column, 1, &batch, &layout.matrix, column_major};
  const autoinv::BatchFunction inv = set.of[sizeof(T) == 8]->inv;
  FallbackList fallback;
  if (threads > 1) autoinv::run_in_parallel(inv, operands, batch, threads, fallback);
  else inv(operands, 0, batch, fallback);
  if (fallback.count != (singular >= 0) || (singular >= 0 && fallback.index[0] != singular)) {
    fail(set.name, "wrong list of matrices that need fallback", n, batch);
  }
  autoinv::release_fallback(fallback);
  for (int64_t i = 0; i < batch; ++i) {
    if (i == singular ? x[i * n * n] != 7 : !is_inverse(a, layout, x, n, i, column_major)) fail(set.name, layout.name, n, batch);
  }
}

template <class T>
void check_gradient(const autoinv::KernelSet& set, int n, int64_t batch, bool at_end) {
  const size_t count = size_t(batch) * n * n;
  Guarded x_at(count * sizeof(T), at_end), g_at(count * sizeof(T), at_end), d_at(count * sizeof(T), at_end);
  T *x = x_at.as<T>(), *g = g_at.as<T>(), *d = d_at.as<T>();
  for (size_t e = 0; e < count; ++e) x[e] = T(uniform()), g[e] = T(1);
  set.of[sizeof(T) == 8]->inv_gradient(x, g, d, n, batch);
  for (int64_t i = 0; i < batch; ++i) {  // with G of ones, entry (0, 0) is this
    double column = 0, row = 0;
    for (int k = 0; k < n; ++k) column += x[i * n * n + k * n], row += x[i * n * n + k];
    if (!(std::fabs(d[i * n * n] + column * row) < 1e-3)) fail(set.name, "gradient", n, batch);
  }
}

template <class T>
void check_set(const autoinv::KernelSet& set, int lanes) {
  for (int n = 1; n <= autoinv::kMaxN; ++n) {
    const int64_t size = int64_t(n) * n;
    const Layout plain = {"contiguous", size, n, 1};
    const Layout others[] = {{"transposed", size, 1, n},
                             {"apart", 3 * size + 5, 3 * n + 1, 2},
                             {"columns sliced", (n + 3) * n, n + 3, 1},
                             {"transposed, apart", size + 7, 1, n}};
    // Beyond the lane kernels matrices are inverted one by one, so that a few are enough.
    const int64_t most = n <= 17 ? 2 * lanes + 1 : 3;
    for (int64_t batch = 0; batch <= most; ++batch) {
      check_inverse<T>(set, n, batch, plain, batch % 2 == 0, 1);
      check_inverse<T>(set, n, batch, plain, batch % 2 != 0, 1, true);
      if (batch <= 1 || batch >= most - 1) check_gradient<T>(set, n, batch, batch % 2 == 0);
    }
    for (const Layout& layout : others) {
      for (const int64_t batch : {int64_t(1), n <= 17 ? int64_t(lanes) : 2, n <= 17 ? int64_t(lanes + 3) : 3}) {
        check_inverse<T>(set, n, batch, layout, true, 1);
        check_inverse<T>(set, n, batch, layout, false, 1, true);
      }
    }
  }
  for (const bool fails : {true, false}) {  // without memory for a job, the caller works alone
    no_memory = fails;
    for (const int n : {3, 8, 20}) check_inverse<T>(set, n, 500, {"parallel", int64_t(n) * n, n, 1}, true, 3);
  }
}

}  // namespace

int main() {
  const autoinv::SetList list = autoinv::runnable_sets();
  for (int i = 0; i < list.count; ++i) {
    check_set<float>(*list.sets[i], 16);
    check_set<double>(*list.sets[i], 8);
    std::printf("%s: %s\n", list.sets[i]->name, failures == 0 ? "clean" : "FAILED");
  }
  return failures == 0 ? 0 : 1;
}
