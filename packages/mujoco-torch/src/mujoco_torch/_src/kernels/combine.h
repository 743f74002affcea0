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

// out (lead, rows, B) of x (..., columns, B), whose rows of worlds may lie anywhere
template <class T>
void combine(const Pattern& p, const Input& x, T* out, int64_t lead) {
  const int64_t worlds = x.worlds(), step = x.strides[x.strides.size() - 2];
  parallel(lead * p.rows, kGrain / (worlds + 1) + 1, [=, &p, &x](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* items = x.as<T>() + start_of_items(x, i / p.rows);
      T* target = out + i * worlds;
      const int64_t first = p.start[i % p.rows], last = p.start[i % p.rows + 1];
      if (first == last) {
        std::memset(target, 0, size_t(worlds) * sizeof(T));
        continue;
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
  });
}

}  // namespace
