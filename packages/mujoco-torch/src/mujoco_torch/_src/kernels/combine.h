// A sparse constant matrix times items: gathers, and sums along the tree.

#pragma once

#include <cstdint>
#include <cstring>

#include "structure.h"
#include "torch_api.h"

namespace {

constexpr int64_t kGrain = 1 << 15;  // numbers a thread should have to write

// out (lead, rows, B) of x (lead, columns, B)
template <class T>
void combine(const Pattern& p, const T* x, T* out, int64_t lead, int64_t worlds) {
  parallel(lead * p.rows, kGrain / (worlds + 1) + 1, [=, &p](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* items = x + i / p.rows * p.columns * worlds;
      T* target = out + i * worlds;
      const int64_t first = p.start[i % p.rows], last = p.start[i % p.rows + 1];
      if (first == last) {
        std::memset(target, 0, size_t(worlds) * sizeof(T));
        continue;
      }
      const T* source = items + p.column[first] * worlds;
      const T value = T(p.value[first]);
      if (value == 1) {
        std::memcpy(target, source, size_t(worlds) * sizeof(T));
      } else {
        for (int64_t w = 0; w < worlds; ++w) target[w] = value * source[w];
      }
      for (int64_t e = first + 1; e < last; ++e) {
        const T* more = items + p.column[e] * worlds;
        const T factor = T(p.value[e]);
        for (int64_t w = 0; w < worlds; ++w) target[w] += factor * more[w];
      }
    }
  });
}

}  // namespace
