// Conversion between memory order (matrix after matrix) and lane order (element e of every matrix in
// one vector), by transposing squares of registers.
//
// Hardware gathers and scatters are slower than scalar loads and stores on the processors tried;
// a square of C x C elements takes C loads and C log2(C) shuffles instead of C^2 of either.
#pragma once

#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T, int Width>
struct Part {
  typedef T Type __attribute__((vector_size(Width * sizeof(T)), aligned(sizeof(T)), may_alias));
};

template <class To, class From, int... I>
AUTOINV_INLINE To join_halves(From low, From high, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(low, high, I...);
}

template <int Which, class V, int... I>
AUTOINV_INLINE auto half_of(V value, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(value, value, (Which * int(sizeof...(I)) + I)...);
}

// Where element i of the first and second result comes from; i counts units of `unit` elements,
// the second operand starts at `lanes`.
enum class Stage {
  exchange,  // [a0 b0] [a1 b1] in every two units
  unpack,    // [a0 b0 a1 b1] [a2 b2 a3 b3] in every four units
  halves,    // [a0 a2 b0 b2] [a1 a3 b1 b3] of four units
};

constexpr int stage_source(Stage stage, int lanes, int unit, int element, int which) {
  const int inside = element % unit, u = element / unit;
  if (stage == Stage::exchange) {
    const int from_b = u % 2;
    return from_b * lanes + (u - from_b + which) * unit + inside;
  }
  if (stage == Stage::unpack) {
    const int group = u / 4 * 4, from_b = u % 2;
    return from_b * lanes + (group + 2 * which + u % 4 / 2) * unit + inside;
  }
  const int from_b = u / 2;
  return from_b * lanes + (2 * (u % 2) + which) * unit + inside;
}

template <Stage S, int Unit, int Which, class V, int... I>
AUTOINV_INLINE V stage_half(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, stage_source(S, sizeof...(I), Unit, I, Which)...);
}

// One stage over all pairs of registers that are `Distance` apart.
template <class T, int C, Stage S, int Unit, int Distance>
AUTOINV_INLINE void run_stage(Vector<T>* v) {
  using All = std::make_integer_sequence<int, Simd<T>::lanes>;
  unroll<0, C>([&](auto i) AUTOINV_LAMBDA {
    if constexpr ((i.value & Distance) == 0) {
      const Vector<T> a = v[i.value], b = v[i.value + Distance];
      v[i.value] = stage_half<S, Unit, 0>(a, b, All{});
      v[i.value + Distance] = stage_half<S, Unit, 1>(a, b, All{});
    }
  });
}

// Transposes every C x C square of C registers. Each stage swaps a bit of the register's number
// with a bit of the element's; only stages that take one instruction are used.
template <class T, int C>
AUTOINV_INLINE void transpose(Vector<T>* v) {
  constexpr int in_16_bytes = 16 / int(sizeof(T));
  if constexpr (in_16_bytes == 4 && C >= 4) {
    run_stage<T, C, Stage::unpack, 1, 2>(v);
    run_stage<T, C, Stage::unpack, 1, 1>(v);
  } else if constexpr (C >= 2) {
    run_stage<T, C, Stage::exchange, 1, 1>(v);
  }
  if constexpr (C == 4 * in_16_bytes) {
    run_stage<T, C, Stage::halves, in_16_bytes, in_16_bytes>(v);
    run_stage<T, C, Stage::halves, in_16_bytes, 2 * in_16_bytes>(v);
  } else if constexpr (C == 2 * in_16_bytes) {
    run_stage<T, C, Stage::exchange, in_16_bytes, in_16_bytes>(v);
  }
}

// Loads Width elements from each of Count places `step` elements apart, and concatenates them.
template <class T, int Width, int Count>
AUTOINV_INLINE typename Part<T, Width * Count>::Type join(const T* from, int step) {
  if constexpr (Count == 1) {
    return *reinterpret_cast<const typename Part<T, Width>::Type*>(from);
  } else {
    return join_halves<typename Part<T, Width * Count>::Type>(
        join<T, Width, Count / 2>(from, step), join<T, Width, Count / 2>(from + Count / 2 * step, step),
        std::make_integer_sequence<int, Width * Count>{});
  }
}

// The reverse: stores the parts of `value` at Count places.
template <class T, int Width, int Count>
AUTOINV_INLINE void split(typename Part<T, Width * Count>::Type value, T* to, int step) {
  if constexpr (Count == 1) {
    *reinterpret_cast<typename Part<T, Width>::Type*>(to) = value;
  } else {
    using Half = std::make_integer_sequence<int, Width * Count / 2>;
    split<T, Width, Count / 2>(half_of<0>(value, Half{}), to, step);
    split<T, Width, Count / 2>(half_of<1>(value, Half{}), to + Count / 2 * step, step);
  }
}

template <class T, int... I>
AUTOINV_INLINE Vector<T> gather_scalars(const T* from, int step, std::integer_sequence<int, I...>) {
  return Vector<T>{from[I * step]...};  // assigned one by one, GCC would read the neighbours too
}

// Loads C elements at `from` of L matrices that lie Size elements apart, as C vectors in lane order.
template <class T, int C, int Size>
AUTOINV_INLINE void load_square(const T* from, Vector<T>* lanes) {
  constexpr int L = Simd<T>::lanes;
  if constexpr (C == 1) {
    lanes[0] = gather_scalars(from, Size, std::make_integer_sequence<int, L>{});
  } else {
    Vector<T> v[C];
    unroll<0, C>([&](auto i) AUTOINV_LAMBDA { v[i.value] = join<T, C, L / C>(from + i.value * Size, C * Size); });
    transpose<T, C>(v);
    unroll<0, C>([&](auto e) AUTOINV_LAMBDA { lanes[e.value] = v[e.value]; });
  }
}

template <class T, int C, int Size>
AUTOINV_INLINE void store_square(const Vector<T>* lanes, T* to) {
  constexpr int L = Simd<T>::lanes;
  if constexpr (C == 1) {
    unroll<0, L>([&](auto l) AUTOINV_LAMBDA { to[l.value * Size] = lanes[0][l.value]; });
  } else {
    Vector<T> v[C];
    unroll<0, C>([&](auto e) AUTOINV_LAMBDA { v[e.value] = lanes[e.value]; });
    transpose<T, C>(v);
    unroll<0, C>([&](auto i) AUTOINV_LAMBDA { split<T, C, L / C>(v[i.value], to + i.value * Size, C * Size); });
  }
}

// The width of the largest square that fits into `elements` elements.
constexpr int square_width(int elements, int lanes) {
  int width = lanes;
  while (width > elements) width /= 2;
  return width;
}

// Loads all Size elements of L adjacent matrices, as Size vectors in lane order, where element e is
// at e + e / N * (Ld - N).
template <class T, int N, int Ld, int From = 0>
AUTOINV_INLINE void load_lanes(const T* from, Vector<T>* lanes) {
  constexpr int Size = N * N;
  constexpr int C = square_width(Size - From, Simd<T>::lanes);
  constexpr int squares = (Size - From) / C;
  static_assert(Ld == N || N % C == 0, "a square must not cross a padded row");
  if constexpr (squares <= 2) {  // unrolled, so that the smallest matrices stay in registers
    unroll<0, squares>([&](auto s) AUTOINV_LAMBDA {
      load_square<T, C, Size>(from + From + s.value * C, lanes + From + s.value * C);
    });
  } else {
    for (int e = From; e < From + squares * C; e += C) load_square<T, C, Size>(from + e, lanes + e + e / N * (Ld - N));
  }
  if constexpr (From + squares * C < Size) load_lanes<T, N, Ld, From + squares * C>(from, lanes);
}

template <class T, int N, int Ld, int From = 0>
AUTOINV_INLINE void store_lanes(const Vector<T>* lanes, T* to) {
  constexpr int Size = N * N;
  constexpr int C = square_width(Size - From, Simd<T>::lanes);
  constexpr int squares = (Size - From) / C;
  static_assert(Ld == N || N % C == 0, "a square must not cross a padded row");
  if constexpr (squares <= 2) {
    unroll<0, squares>([&](auto s) AUTOINV_LAMBDA {
      store_square<T, C, Size>(lanes + From + s.value * C, to + From + s.value * C);
    });
  } else {
    for (int e = From; e < From + squares * C; e += C) store_square<T, C, Size>(lanes + e + e / N * (Ld - N), to + e);
  }
  if constexpr (From + squares * C < Size) store_lanes<T, N, Ld, From + squares * C>(lanes, to);
}

}  // namespace AUTOINV_SET
}  // namespace autoinv
