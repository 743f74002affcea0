// A sparse constant matrix times items: gathers, and sums along the tree.

#pragma once

#include <cstdint>
#include <cstring>

#include "structure.h"
#include "torch_api.h"

namespace {

constexpr int64_t kGrain = 1 << 15;  // numbers a thread should have to write

// Where the items (columns, B) of a tensor (..., columns, B) begin, for each number of what is in front.
inline int64_t start_of_items(const Input& x, int64_t number) {
  int64_t start = 0;
  for (size_t d = x.shape.size() - 2; d-- > 0; number /= x.shape[d]) start += number % x.shape[d] * x.strides[d];
  return start;
}

// A row (B) of the product.
template <class T>
inline void combine_row(const Pattern& p, int64_t row, const T* items, int64_t step, int64_t worlds, T* target) {
  const int64_t first = p.start[row], last = p.start[row + 1];
  if (worlds == 1) {
    T sum = first == last ? T(0) : T(p.value[first]) * items[p.column[first] * step];  // -0 stays -0
    for (int64_t e = first + 1; e < last; ++e) sum += T(p.value[e]) * items[p.column[e] * step];
    *target = sum;
    return;
  }
  if (first == last) {
    std::memset(target, 0, size_t(worlds) * sizeof(T));
    return;
  }
  const T* source = items + p.column[first] * step;
  const T value = T(p.value[first]);
  if (value == 1) {
    std::memcpy(target, source, size_t(worlds) * sizeof(T));
  } else {
    for (int64_t w = 0; w < worlds; ++w) target[w] = value * source[w];
  }
  for (int64_t e = first + 1; e < last; ++e) {
    const T* more = items + p.column[e] * step;
    const T factor = T(p.value[e]);
    for (int64_t w = 0; w < worlds; ++w) target[w] += factor * more[w];
  }
}

// out (lead, rows, B) of x (..., columns, B), whose rows of worlds may lie anywhere
template <class T>
void combine(const Pattern& p, const Input& x, T* out, int64_t lead) {
  const int64_t worlds = x.worlds(), step = x.strides[x.strides.size() - 2];
  parallel(lead * p.rows, kGrain / (worlds + 1) + 1, [=, &p, &x](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t number = begin / p.rows, last = std::min(end, (number + 1) * p.rows);
      const T* items = x.as<T>() + start_of_items(x, number);
      for (; begin < last; ++begin) {
        combine_row<T>(p, begin - number * p.rows, items, step, worlds, out + begin * worlds);
      }
    }
  });
}

}  // namespace
