// Constraint rows in use in a group of worlds, and products with them.

#pragma once

#include <cstddef>
#include <cstdint>

#include "matrix.h"

namespace {

constexpr int kMaxAxes = 6;  // normal, two tangents, and the torques about them

// A run of rows with stiffness in some world and the same blocks: the rows of a contact.
struct Span {
  uint64_t blocks;
  int first, last;  // in the list of hits
};

// One constraint of one world, and the first of its slots.
struct Entry {
  int constraint, slot, lane;
};

// Rows with weight. A slot holds one row of each world: with a dense Jacobian the same in all of them, with factored
// rows (factors.h) the next one that the world uses. `blocks` has a bit per tile column in which J is not zero in some
// world (columns 64 apart share a bit).
template <class T>
struct Rows {
  int count;            // of slots
  int plain;            // slots of rows by themselves; those of elliptic cones follow, `axes` to a cone
  int axes;
  bool contacts;        // whether any slot holds a contact's row
  Mask<T> constrained;  // worlds with any row
  Vec<T>* jac;
  Vec<T>* weight;
  Vec<T>* aref;
  Vec<T>* damping;
  Vec<T>* residual;
  Vec<T>* rate;
  Vec<T>* stiffness;
  Vec<T>* low;          // bounds of the residual within which a row's force grows; of general systems
  Vec<T>* high;
  Vec<T>* cone_weight;  // of each cone: c of penalty.py, and mu
  Vec<T>* cone_mu;
  Vec<T>* cone_line;    // of each cone: six numbers of the line search
  Vec<T>* bent;         // of each slot of a cone: rows that make its second derivative
  uint64_t* blocks;
  int* active;
  Vec<T>* scaled;
  const Vec<T>** hits;
  Span* spans;
  Entry* entries;  // factored rows only
  int entry_count;
  int filled[kLanes<T>];  // slots of each world
};

template <class T>
void clear(Rows<T>& rows) {
  rows.count = rows.plain = rows.entry_count = 0;
  rows.contacts = false;
  rows.constrained = Mask<T>{};
  for (int& filled : rows.filled) filled = 0;
}

// ---- from a dense Jacobian

// Copies a row and returns its blocks.
template <class T>
uint64_t pack_dense_row(const T* source, int64_t nv, int64_t worlds, int count, Vec<T>* row) {
  uint64_t blocks = 0;
  for (int b = 0; b < tiles(nv); ++b) {
    Mask<T> used = {};
    for (int c = b * kTile; c < (b + 1) * kTile; ++c) {
      row[c] = c < nv ? load<T>(source + c * worlds, count) : Vec<T>{};
      used |= row[c] != 0;
    }
    if (any<T>(used)) blocks |= block_bit(b);
  }
  return blocks;
}

// The rows (nefc, nv, B) with weight (nefc, B) of each group of a turn.
template <class T>
void pack_dense(const T* jac, const T* weight, int64_t nv, int64_t nefc, int64_t worlds, const Turn& turn,
                Rows<T>* const* groups) {
  for (int g = 0; g < turn.groups; ++g) clear<T>(*groups[g]);
  for (int64_t i = 0; i < nefc; ++i) {
    for (int g = 0; g < turn.groups; ++g) {
      const int64_t world = turn.world + g * kLanes<T>;
      const int count = count_of<T>(turn, g);
      const Vec<T> w = load<T>(weight + i * worlds + world, count);
      if (!any<T>(w != 0)) continue;
      Rows<T>& rows = *groups[g];
      Vec<T>* row = rows.jac + size_t(rows.count) * tiles(nv) * kTile;
      rows.blocks[rows.count] = pack_dense_row<T>(jac + i * nv * worlds + world, nv, worlds, count, row);
      rows.weight[rows.count++] = w;
    }
  }
}

// ---- products

// x += J_k' scale
template <class T>
inline void add_multiple(const Rows<T>& rows, int k, Vec<T> scale, Vec<T>* x, int nb) {
  const Vec<T>* row = rows.jac + size_t(k) * nb * kTile;
  for (int b = 0; b < nb; ++b) {
    if (!has_block(rows.blocks[k], b)) continue;
    for (int c = b * kTile; c < (b + 1) * kTile; ++c) x[c] += row[c] * scale;
  }
}

// out_k = J_k x
template <class T>
void row_products(const Rows<T>& rows, const Vec<T>* x, Vec<T>* out, int nb) {
  for (int k = 0; k < rows.count; ++k) {
    const Vec<T>* row = rows.jac + size_t(k) * nb * kTile;
    Vec<T> acc[kTile] = {};
    for (int b = 0; b < nb; ++b) {
      if (!has_block(rows.blocks[k], b)) continue;
      for (int c = 0; c < kTile; ++c) acc[c] += row[b * kTile + c] * x[b * kTile + c];
    }
    out[k] = (acc[0] + acc[1]) + (acc[2] + acc[3]);
  }
}

// Adds the tiles of J' D J to the shape of a matrix; `blocks` are those of a row.
inline void add_blocks(uint64_t* shape, uint64_t blocks, int nb) {
  for (int i = 0; i < nb; ++i) {
    if (has_block(blocks, i)) shape[i] |= blocks;
  }
}

// The shape of A + J' D J and its factor, of dense A and J.
template <class T>
void find_dense_shape(Vec<T>* matrix, const Rows<T>& rows, uint64_t* shape, int nb) {
  for (int i = 0; i < nb; ++i) {
    shape[i] = block_bit(i);
    for (int j = 0; j < i; ++j) {
      Mask<T> used = {};
      for (int e = 0; e < kTileSize; ++e) used |= tile(matrix, i, j)[e] != 0;
      if (any<T>(used)) shape[i] |= block_bit(j);
    }
  }
  for (int k = 0; k < rows.count; ++k) add_blocks(shape, rows.blocks[k], nb);
  fill_in(shape, nb);
}

// A += J' diag(change) J, where no row of a world has other tiles than those of the shape of A. (The rows of several
// worlds in a slot may have.)
template <class T>
void add_rows(Rows<T>& rows, const Vec<T>* change, Vec<T>* target, const uint64_t* shape, int nb) {
  int active = 0;
  for (int k = 0; k < rows.count; ++k) {
    if (any<T>(change[k] != 0)) rows.active[active++] = k;
  }
  for (int i = 0; i < nb; ++i) {
    int hits = 0, spans = 0;
    for (int a = 0; a < active; ++a) {
      const int k = rows.active[a];
      const uint64_t blocks = rows.blocks[k];
      if (!has_block(blocks, i)) continue;
      if (spans == 0 || rows.spans[spans - 1].blocks != blocks) rows.spans[spans++] = {blocks, hits, hits};
      const Vec<T>* row = rows.jac + size_t(k) * nb * kTile;
      for (int r = 0; r < kTile; ++r) rows.scaled[hits * kTile + r] = change[k] * row[i * kTile + r];
      rows.hits[hits++] = row;
      rows.spans[spans - 1].last = hits;
    }
    uint64_t touched = 0;
    for (int s = 0; s < spans; ++s) touched |= rows.spans[s].blocks;
    touched &= shape[i];
    for (int j = 0; j <= i; ++j) {
      if (!has_block(touched, j)) continue;
      Vec<T>* out = tile(target, i, j);
      Vec<T> acc[kTileSize];
      for (int e = 0; e < kTileSize; ++e) acc[e] = out[e];
      for (int s = 0; s < spans; ++s) {
        if (!has_block(rows.spans[s].blocks, j)) continue;
        for (int h = rows.spans[s].first; h < rows.spans[s].last; ++h) {
          add_outer(acc, rows.hits[h] + j * kTile, rows.scaled + h * kTile);
        }
      }
      for (int e = 0; e < kTileSize; ++e) out[e] = acc[e];
    }
  }
}

}  // namespace
