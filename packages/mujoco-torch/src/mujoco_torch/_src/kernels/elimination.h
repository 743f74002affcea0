// Unsymmetric systems, one world per lane: from the last unknown to the first, without pivoting.
//
// In this order a matrix with the elements of the inertia has no fill-in, so what is zero in all lanes is skipped.

#pragma once

#include "simd.h"

namespace {

// x = a^-1 x, where a is n x n, row by row; a is overwritten. `columns` is scratch for n numbers.
template <class T>
void eliminate(Vec<T>* __restrict a, Vec<T>* __restrict x, int64_t* columns, int64_t n) {
  for (int64_t k = n - 1; k >= 0; --k) {
    const Vec<T>* row = a + k * n;
    const Vec<T> inverse = T(1) / row[k];
    int64_t count = 0;
    for (int64_t j = 0; j < k; ++j) {
      if (any<T>(row[j] != 0)) columns[count++] = j;
    }
    for (int64_t i = 0; i < k; ++i) {
      Vec<T>* target = a + i * n;
      if (!any<T>(target[k] != 0)) continue;
      const Vec<T> factor = target[k] * inverse;
      for (int64_t c = 0; c < count; ++c) target[columns[c]] -= factor * row[columns[c]];
      x[i] -= factor * x[k];
    }
    a[k * n + k] = inverse;
  }
  for (int64_t k = 0; k < n; ++k) {
    Vec<T> sum = x[k];
    for (int64_t j = 0; j < k; ++j) sum -= a[k * n + j] * x[j];
    x[k] = sum * a[k * n + k];
  }
}

}  // namespace
