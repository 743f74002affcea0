// Constraint rows in use in a group of worlds, and products with them.

#pragma once

#include <cstddef>
#include <cstdint>

#include "matrix.h"

namespace {

constexpr int kMaxAxes = 6;  // normal, two tangents, and the torques about them

// Rows of J that share their blocks, and the slots whose residuals they make: one row by itself; the axes of an
// elliptic cone, a slot each; or the axes of a pyramid, whose slots are its edges: the normal plus and minus each other
// axis. (A pyramid of condim 3 has four edges and three axes.)
struct Piece {
  uint64_t blocks;  // a bit per tile column in which J is not zero in some world (columns 64 apart share a bit)
  int slot, row, axes;
  bool pyramid;

  int slots() const { return pyramid ? 2 * (axes - 1) : axes; }
};

// A run of rows of J with the same blocks.
struct Span {
  uint64_t blocks;
  int first, last;  // in the list of hits
};

// Rows with weight. A slot holds one row of each world. First come rows of one dof, the same one in all worlds, which
// need no J. The slots of a piece hold rows of the next constraint that each world uses (factors.h).
template <class T>
struct Rows {
  int count;    // of slots
  int singles;  // slots of rows of one dof
  int plain;    // slots of all rows by themselves; those of elliptic cones follow
  int rows;     // of J
  int pieces, cones;  // of the pieces the last are cones
  int axes;           // at most, of a piece
  Mask<T> constrained;  // worlds with any row
  int* dof;             // of each single row, and its J
  Vec<T>* value;
  Mask<T>* single;      // the constraint of each world in it, -1 for none
  Piece* piece;
  int* owner;  // the constraint of each world in each piece, -1 for none
  Vec<T>* jac;
  Vec<T>* weight;  // of each slot
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
  Vec<T>* coupling;     // second derivatives of the cost by the axes of a piece, `axes` for each row of J
  Vec<T>* pull;         // along each row of J
  Vec<T>* scaled;
  const Vec<T>** hits;
  Span* spans;
  int* active;
};

template <class T>
void clear(Rows<T>& rows) {
  rows.count = rows.singles = rows.plain = rows.rows = rows.pieces = rows.cones = 0;
  rows.axes = 1;
  rows.constrained = Mask<T>{};
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
      const int k = rows.count++;
      Vec<T>* row = rows.jac + size_t(k) * tiles(nv) * kTile;
      rows.piece[k] = {pack_dense_row<T>(jac + i * nv * worlds + world, nv, worlds, count, row), k, k, 1, false};
      rows.weight[k] = w;
      rows.plain = rows.rows = rows.pieces = rows.count;
    }
  }
}

// ---- from the axes of a piece to its slots, and back

// Changes of the residuals of the slots, from those along the axes.
template <class T>
inline void spread(const Piece& piece, const Vec<T>* along, Vec<T>* out) {
  if (!piece.pyramid) {
    for (int a = 0; a < piece.axes; ++a) out[a] = along[a];
    return;
  }
  for (int a = 1; a < piece.axes; ++a) {
    *out++ = along[0] + along[a];
    *out++ = along[0] - along[a];
  }
}

// Forces along the axes, from those of the slots.
template <class T>
inline void gather(const Piece& piece, const Vec<T>* force, Vec<T>* along) {
  if (!piece.pyramid) {
    for (int a = 0; a < piece.axes; ++a) along[a] = force[a];
    return;
  }
  along[0] = Vec<T>{};
  for (int a = 1; a < piece.axes; ++a, force += 2) {
    along[0] += force[0] + force[1];
    along[a] = force[0] - force[1];
  }
}

// The matrix (axes x axes) of the second derivatives by the axes, from those of the slots by themselves.
template <class T>
inline void couple(const Piece& piece, const Vec<T>* stiffness, Vec<T>* coupling) {
  const int n = piece.axes;
  for (int e = 0; e < n * n; ++e) coupling[e] = Vec<T>{};
  if (!piece.pyramid) {
    for (int a = 0; a < n; ++a) coupling[a * n + a] = stiffness[a];
    return;
  }
  for (int a = 1; a < n; ++a, stiffness += 2) {
    const Vec<T> sum = stiffness[0] + stiffness[1];
    coupling[0] += sum;
    coupling[a * n + a] = sum;
    coupling[a] = coupling[a * n] = stiffness[0] - stiffness[1];
  }
}

// ---- products

// The products of n rows of J with x.
template <class T, int n>
inline void row_products(const Vec<T>* row, size_t stride, uint64_t blocks, const Vec<T>* x, Vec<T>* out, int nb) {
  Vec<T> acc[n][kTile] = {};
  for (int b = 0; b < nb; ++b) {
    if (!has_block(blocks, b)) continue;
#pragma GCC unroll 4
    for (int c = 0; c < kTile; ++c) {
      Vec<T> factor = x[b * kTile + c];
      keep(factor);
#pragma GCC unroll 5
      for (int a = 0; a < n; ++a) acc[a][c] += row[a * stride + b * kTile + c] * factor;
    }
  }
#pragma GCC unroll 5
  for (int a = 0; a < n; ++a) out[a] = (acc[a][0] + acc[a][1]) + (acc[a][2] + acc[a][3]);
}

// out_k = J_k x of all slots
template <class T>
void slot_products(const Rows<T>& rows, const Vec<T>* x, Vec<T>* out, int nb) {
  const size_t stride = size_t(nb) * kTile;
  for (int k = 0; k < rows.singles; ++k) out[k] = rows.value[k] * x[rows.dof[k]];
  for (int p = 0; p < rows.pieces; ++p) {
    const Piece piece = rows.piece[p];
    const Vec<T>* row = rows.jac + piece.row * stride;
    Vec<T> along[kMaxAxes];
    int a = 0;
    for (; a + 3 <= piece.axes; a += 3) row_products<T, 3>(row + a * stride, stride, piece.blocks, x, along + a, nb);
    for (; a < piece.axes; ++a) row_products<T, 1>(row + a * stride, stride, piece.blocks, x, along + a, nb);
    spread<T>(piece, along, out + piece.slot);
  }
}

// x += J' pull of the active pieces
template <class T>
void add_pulls(const Rows<T>& rows, int active, Vec<T>* x, int nb) {
  const size_t stride = size_t(nb) * kTile;
  for (int b = 0; b < nb; ++b) {
    Vec<T> acc[kTile];
    for (int c = 0; c < kTile; ++c) acc[c] = x[b * kTile + c];
    for (int i = 0; i < active; ++i) {
      const Piece& piece = rows.piece[rows.active[i]];
      if (!has_block(piece.blocks, b)) continue;
      for (int a = piece.row; a < piece.row + piece.axes; ++a) {
        const Vec<T>* row = rows.jac + a * stride + b * kTile;
        for (int c = 0; c < kTile; ++c) acc[c] += row[c] * rows.pull[a];
      }
    }
    for (int c = 0; c < kTile; ++c) x[b * kTile + c] = acc[c];
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
  for (int p = 0; p < rows.pieces; ++p) add_blocks(shape, rows.piece[p].blocks, nb);
  fill_in(shape, nb);
}

// What a factorisation adds to A on the way: J' S J of the first `active` of the active pieces, S their coupling. Only
// that of the first `kept` stays in A. No row of a world has other tiles than those of the shape of A. (The rows of
// several worlds in a piece may have.)
template <class T>
struct Change {
  Rows<T>* rows;
  int kept, active, nb;
  int kept_spans = 0, spans = 0;
  uint64_t touched = 0;

  // Lists the rows of J that have block i, and what their products are added with: rows of S J.
  void list(int i) {
    const size_t stride = size_t(nb) * kTile;
    int hits = 0;
    spans = 0;
    touched = 0;
    for (int index = 0; index < active; ++index) {
      if (index == kept) kept_spans = spans;
      const Piece& piece = rows->piece[rows->active[index]];
      if (!has_block(piece.blocks, i)) continue;
      Span* span = rows->spans + spans - 1;
      if (spans == 0 || (index >= kept && kept_spans == spans) || span->blocks != piece.blocks) {
        *++span = {piece.blocks, hits, hits};
        ++spans;
      }
      const Vec<T>* row = rows->jac + piece.row * stride;
      const Vec<T>* coupling = rows->coupling + size_t(piece.row) * rows->axes;
      for (int a = 0; a < piece.axes; ++a, coupling += piece.axes) {
        Vec<T> sum[kTile] = {};
        for (int b = 0; b < piece.axes; ++b) {
          for (int r = 0; r < kTile; ++r) sum[r] += coupling[b] * row[b * stride + i * kTile + r];
        }
        for (int r = 0; r < kTile; ++r) rows->scaled[hits * kTile + r] = sum[r];
        rows->hits[hits++] = row + a * stride;
      }
      span->last = hits;
      touched |= piece.blocks;
    }
    if (active == kept) kept_spans = spans;
  }

  void add_spans(int first, int last, int j, Vec<T>* acc) {
    for (int s = first; s < last; ++s) {
      if (!has_block(rows->spans[s].blocks, j)) continue;
      for (int h = rows->spans[s].first; h < rows->spans[s].last; ++h) {
        add_outer(acc, rows->hits[h] + j * kTile, rows->scaled + h * kTile);
      }
    }
  }

  void add(int j, Vec<T>* acc, Vec<T>* tile) {
    if (!has_block(touched, j)) return;
    if (kept_spans) {
      add_spans(0, kept_spans, j, acc);
      for (int e = 0; e < kTileSize; ++e) tile[e] = acc[e];
    }
    add_spans(kept_spans, spans, j, acc);
  }
};

// Lists the pieces of rows by themselves whose stiffness changes, and how much; returns their number. What rows of one
// dof change is added to A. `change` is one number a slot.
template <class T>
int list_changes(Rows<T>& rows, const Vec<T>* change, Vec<T>* a) {
  for (int k = 0; k < rows.singles; ++k) {
    const size_t dof = size_t(rows.dof[k]);
    a[element(dof, dof)] += change[k] * rows.value[k] * rows.value[k];
  }
  int active = 0;
  for (int p = 0; p < rows.pieces - rows.cones; ++p) {
    const Piece& piece = rows.piece[p];
    Mask<T> changed = {};
    for (int k = piece.slot; k < piece.slot + piece.slots(); ++k) changed |= change[k] != 0;
    if (!any<T>(changed)) continue;
    couple<T>(piece, change + piece.slot, rows.coupling + size_t(piece.row) * rows.axes);
    rows.active[active++] = p;
  }
  return active;
}

}  // namespace
