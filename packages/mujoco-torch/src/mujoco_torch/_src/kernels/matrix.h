// Many small symmetric matrices: lower triangles of 4x4 tiles. Tile (I, J) holds 16 Vec, element (r, c) at 4 r + c.
// Above the diagonal of a diagonal tile there may be anything.
// Sizes are padded to whole tiles with an identity, which leaves every result as it is.
//
// A matrix has a shape: of each tile row a word with a bit per tile column (columns 64 apart share a bit) whose tile may
// be other than zero. Bits right of the diagonal mean nothing. Tiles outside the shape are neither written nor read.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace {

inline int tiles(int64_t n) { return int((n + kTile - 1) / kTile); }

template <class V>
inline V* tile(V* matrix, int i, int j) {
  return matrix + (size_t(i) * (i + 1) / 2 + j) * kTileSize;
}

// Where element (i, j) is, j in a tile column up to that of i.
inline size_t element(int64_t i, int64_t j) {
  const int64_t bi = i / kTile, bj = j / kTile;
  return size_t((bi * (bi + 1) / 2 + bj) * kTileSize + i % kTile * kTile + j % kTile);
}

inline size_t matrix_size(int nb) { return size_t(nb) * (nb + 1) / 2 * kTileSize; }

inline uint64_t block_bit(int block) { return uint64_t(1) << (block & 63); }

inline bool has_block(uint64_t blocks, int block) { return blocks & block_bit(block); }

// Adds the tiles that factorize() fills. It goes from the last row to the first, and a row fills those above in which
// it has a tile. Dofs come after those that carry them, so a tree by itself fills next to nothing, and trees that
// nothing connects stay apart.
inline void fill_in(uint64_t* shape, int nb) {
  for (int k = nb - 1; k > 0; --k) {
    for (int i = 0; i < k; ++i) {
      if (has_block(shape[k], i)) shape[i] |= shape[k];
    }
  }
}

template <class V>
void clear_tiles(V* matrix, const uint64_t* shape, int nb) {
  for (int i = 0; i < nb; ++i) {
    for (int j = 0; j <= i; ++j) {
      if (has_block(shape[i], j)) std::memset(tile(matrix, i, j), 0, kTileSize * sizeof(V));
    }
  }
}

// Lower triangles of symmetric (n, n, B) matrices into tiles, where `matrices` is not null.
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
        tile(matrices[g], bi, bj)[r * kTile + c] = x;
      }
    }
  }
}

// Of the pivots from the last to the first, in a diagonal tile: row c of L, and one over its diagonal to scale[c].
template <class T>
inline void factorize_diagonal(Vec<T>* a, Vec<T>* scale) {
#pragma GCC unroll 4
  for (int c = kTile - 1; c >= 0; --c) {
    a[c * kTile + c] = floor_at<T>(a[c * kTile + c], kMinVal<T>);
    scale[c] = T(1) / a[c * kTile + c];
#pragma GCC unroll 4
    for (int d = 0; d < c; ++d) {
      const Vec<T> factor = a[c * kTile + d] * scale[c];
#pragma GCC unroll 4
      for (int r = 0; r <= d; ++r) a[d * kTile + r] -= a[c * kTile + r] * factor;
    }
  }
}

// The same pivots in a tile beside that diagonal tile.
template <class T>
inline void factorize_beside(Vec<T>* a, const Vec<T>* diagonal, const Vec<T>* scale) {
#pragma GCC unroll 4
  for (int c = kTile - 1; c > 0; --c) {
#pragma GCC unroll 4
    for (int d = 0; d < c; ++d) {
      const Vec<T> factor = diagonal[c * kTile + d] * scale[c];
      for (int r = 0; r < kTile; ++r) a[d * kTile + r] -= a[c * kTile + r] * factor;
    }
  }
}

// A to L with A = L' D^-1 L, L lower and D its diagonal: a Cholesky factor is D^-1/2 L, but this one needs no square
// roots, whose latency would dominate small matrices. The shape holds the fill-in. `inverse` gets D^-1, `panel` is
// scratch (a tile column), `below` too (a number per tile row). A is changed on the way: of each tile row change.list(i)
// is told, and change.add(j, acc, tile) changes the tile in acc, and in memory what is to stay.
template <class T, class Change>
void factorize(Vec<T>* a, Vec<T>* matrix, Vec<T>* inverse, Vec<T>* panel, int* below, const uint64_t* shape, int nb,
               Change change) {
  for (int i = nb - 1; i >= 0; --i) {
    Vec<T>* scale = inverse + i * kTile;
    change.list(i);
    int count = 0;
    for (int k = i + 1; k < nb; ++k) {
      if (!has_block(shape[k], i)) continue;
      const Vec<T>* source = tile(matrix, k, i);
      Vec<T>* scaled = panel + count * kTileSize;
      for (int e = 0; e < kTileSize; ++e) scaled[e] = -source[e] * inverse[k * kTile + e / kTile];
      below[count++] = k;
    }
    for (int j = i; j >= 0; --j) {
      if (!has_block(shape[i], j)) continue;
      Vec<T>* target = tile(matrix, i, j);
      Vec<T> acc[kTileSize];
      Vec<T>* known = tile(a, i, j);
      for (int e = 0; e < kTileSize; ++e) acc[e] = known[e];
      change.add(j, acc, known);
      for (int b = 0; b < count; ++b) {
        if (!has_block(shape[below[b]], j)) continue;
        const Vec<T>*left = tile(matrix, below[b], j), *right = panel + b * kTileSize;
        for (int p = 0; p < kTile; ++p) add_outer(acc, left + p * kTile, right + p * kTile);
      }
      if (i == j) {
        factorize_diagonal<T>(acc, scale);
      } else {
        factorize_beside<T>(acc, tile(matrix, i, i), scale);
      }
      for (int e = 0; e < kTileSize; ++e) target[e] = acc[e];
    }
  }
}

// In place, x to the solution of L' D^-1 L x = b.
template <class T>
void substitute(Vec<T>* factor, const Vec<T>* inverse, Vec<T>* x, const uint64_t* shape, int nb) {
  for (int i = nb - 1; i >= 0; --i) {
    Vec<T> own[kTile];
    for (int r = 0; r < kTile; ++r) own[r] = x[i * kTile + r];
    const Vec<T>* diagonal = tile(factor, i, i);
    for (int c = kTile - 1; c >= 0; --c) {
      own[c] *= inverse[i * kTile + c];
      for (int r = 0; r < c; ++r) own[r] -= diagonal[c * kTile + r] * own[c];
    }
    for (int r = 0; r < kTile; ++r) x[i * kTile + r] = own[r];
    for (int j = 0; j < i; ++j) {
      if (!has_block(shape[i], j)) continue;
      const Vec<T>* left = tile(factor, i, j);
      Vec<T>* target = x + j * kTile;
      for (int r = 0; r < kTile; ++r) {
        for (int c = 0; c < kTile; ++c) target[c] -= left[r * kTile + c] * own[r];
      }
    }
  }
  for (int i = 0; i < nb; ++i) {
    Vec<T>* target = x + i * kTile;
    Vec<T> acc[kTile] = {};
    for (int j = 0; j < i; ++j) {
      if (!has_block(shape[i], j)) continue;
      const Vec<T>* left = tile(factor, i, j);
      for (int c = 0; c < kTile; ++c) {
        for (int r = 0; r < kTile; ++r) acc[r] += left[r * kTile + c] * x[j * kTile + c];
      }
    }
    const Vec<T>* diagonal = tile(factor, i, i);
    for (int c = 0; c < kTile; ++c) {
      for (int d = 0; d < c; ++d) acc[c] += diagonal[c * kTile + d] * target[d];
      target[c] -= inverse[i * kTile + c] * acc[c];
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
