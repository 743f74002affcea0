// Many small symmetric matrices: lower triangles of 4x4 tiles. Tile (I, J) holds 16 Vec, element (r, c) at 4 c + r.
// Sizes are padded to whole tiles with an identity, which leaves every result as it is.

#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace {

inline int tiles(int64_t n) { return int((n + kTile - 1) / kTile); }

template <class V>
inline V* tile(V* matrix, int i, int j) {
  return matrix + (size_t(i) * (i + 1) / 2 + j) * kTileSize;
}

inline size_t matrix_size(int nb) { return size_t(nb) * (nb + 1) / 2 * kTileSize; }

// Lower triangles of symmetric (n, n, B) matrices into tiles, where `matrices` is not null; diagonal tiles become full.
template <class T>
void pack_symmetric(const T* source, int64_t n, int64_t worlds, const Turn& turn, Vec<T>* const* matrices) {
  for (int64_t i = 0; i < int64_t(tiles(n)) * kTile; ++i) {
    for (int g = 0; g < turn.groups; ++g) {
      if (!matrices[g]) continue;
      const T* row = source + i * n * worlds + turn.world + g * kLanes<T>;
      const int bi = int(i / kTile), r = int(i % kTile);
      for (int64_t j = 0; j <= i; ++j) {
        if (i + 1 < n) prefetch(row + (n + j) * worlds);
        const Vec<T> x = i < n ? load<T>(row + j * worlds, count_of<T>(turn, g)) : fill<T>(T(i == j));
        const int bj = int(j / kTile), c = int(j % kTile);
        tile(matrices[g], bi, bj)[c * kTile + r] = x;
        if (bi == bj) tile(matrices[g], bi, bj)[r * kTile + c] = x;
      }
    }
  }
}

// In place, A to U with A = U D^-1 U', U lower and D its diagonal: a Cholesky factor is U D^-1/2, but this one needs no
// square roots, whose latency would dominate small matrices. `inverse` gets D^-1, `panel` is scratch (one tile row).
template <class T>
void factorize(Vec<T>* matrix, Vec<T>* inverse, Vec<T>* panel, int nb) {
  for (int k = 0; k < nb; ++k) {
    Vec<T>* diagonal = tile(matrix, k, k);
    Vec<T>* scale = inverse + k * kTile;
    const Vec<T>* row = tile(matrix, k, 0);
    for (int p = 0; p < k * kTile; ++p) {
      for (int c = 0; c < kTile; ++c) panel[p * kTile + c] = -row[p * kTile + c] * inverse[p];
    }
    for (int i = k; i < nb; ++i) {
      Vec<T>* target = tile(matrix, i, k);
      Vec<T> acc[kTileSize];
      for (int e = 0; e < kTileSize; ++e) acc[e] = target[e];
      const Vec<T>* left = tile(matrix, i, 0);
      const Vec<T>* right = panel;
      for (int p = 0; p < k * kTile; ++p, left += kTile, right += kTile) {
        add_outer(acc, left, right);
      }
      if (i == k) {
        for (int c = 0; c < kTile; ++c) {
          acc[c * kTile + c] = floor_at<T>(acc[c * kTile + c], kMinVal<T>);
          scale[c] = T(1) / acc[c * kTile + c];
          for (int d = c + 1; d < kTile; ++d) {
            const Vec<T> factor = acc[c * kTile + d] * scale[c];
            for (int r = d; r < kTile; ++r) acc[d * kTile + r] -= acc[c * kTile + r] * factor;
          }
        }
      } else {
        for (int c = 0; c < kTile; ++c) {
          for (int d = c + 1; d < kTile; ++d) {
            const Vec<T> factor = diagonal[c * kTile + d] * scale[c];
            for (int r = 0; r < kTile; ++r) acc[d * kTile + r] -= acc[c * kTile + r] * factor;
          }
        }
      }
      for (int e = 0; e < kTileSize; ++e) target[e] = acc[e];
    }
  }
}

// In place, x to the solution of U D^-1 U' x = b.
template <class T>
void substitute(Vec<T>* factor, const Vec<T>* inverse, Vec<T>* x, int nb) {
  for (int i = 0; i < nb; ++i) {
    Vec<T>* target = x + i * kTile;
    Vec<T> acc[kTile];
    for (int r = 0; r < kTile; ++r) acc[r] = target[r];
    const Vec<T>* left = tile(factor, i, 0);
    for (int p = 0; p < i * kTile; ++p, left += kTile) {
      for (int r = 0; r < kTile; ++r) acc[r] -= left[r] * x[p];
    }
    for (int c = 0; c < kTile; ++c, left += kTile) {
      acc[c] *= inverse[i * kTile + c];
      for (int r = c + 1; r < kTile; ++r) acc[r] -= left[r] * acc[c];
    }
    for (int r = 0; r < kTile; ++r) target[r] = acc[r];
  }
  for (int k = nb - 1; k >= 0; --k) {
    Vec<T>* target = x + k * kTile;
    Vec<T> acc[kTile] = {};
    for (int i = nb - 1; i > k; --i) {
      const Vec<T>* left = tile(factor, i, k);
      for (int r = 0; r < kTile; ++r) {
        for (int c = 0; c < kTile; ++c) acc[c] += left[c * kTile + r] * x[i * kTile + r];
      }
    }
    const Vec<T>* diagonal = tile(factor, k, k);
    for (int c = kTile - 1; c >= 0; --c) {
      for (int r = c + 1; r < kTile; ++r) acc[c] += diagonal[c * kTile + r] * target[r];
      target[c] -= inverse[k * kTile + c] * acc[c];
    }
  }
}

template <class T>
inline Vec<T> dot(const Vec<T>* x, const Vec<T>* y, int n) {
  Vec<T> sum = {};
  for (int i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

template <class T>
void load_vector(const T* source, int64_t n, int64_t worlds, int count, Vec<T>* x, int padded) {
  for (int i = 0; i < padded; ++i) x[i] = i < n ? load<T>(source + i * worlds, count) : Vec<T>{};
}

template <class T>
void store_vector(T* target, const Vec<T>* x, int64_t n, int64_t worlds, int count) {
  for (int64_t i = 0; i < n; ++i) store<T>(target + i * worlds, x[i], count);
}

}  // namespace
