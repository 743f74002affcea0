// Constraint rows in use in a group of worlds: packed from a dense or a factored Jacobian, and products with them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "matrix.h"

namespace {

// A run of rows with stiffness in some world and the same blocks: the rows of a contact.
struct Span {
  uint64_t blocks;
  int first, last;  // in the list of hits
};

// Rows with weight in at least one world of the group. `blocks` has a bit per tile column in which J is not zero
// (columns 64 apart share a bit).
template <class T>
struct Rows {
  int count;
  Mask<T> constrained;  // worlds with any such row
  Vec<T>* jac;
  Vec<T>* weight;
  Vec<T>* aref;
  Vec<T>* residual;
  Vec<T>* rate;
  Vec<T>* stiffness;
  uint64_t* blocks;
  int* index;
  int* active;
  Vec<T>* scaled;
  const Vec<T>** hits;
  Span* spans;
};

inline uint64_t block_bit(int block) { return uint64_t(1) << (block & 63); }

inline bool has_block(uint64_t blocks, int block) { return blocks & block_bit(block); }

template <class T>
void clear(Rows<T>& rows) {
  rows.count = 0;
  rows.constrained = Mask<T>{};
}

// Where J of the next row goes; `add_row` makes it one of the rows.
template <class T>
inline Vec<T>* next_row(Rows<T>& rows, int nb) {
  return rows.jac + size_t(rows.count) * nb * kTile;
}

template <class T>
inline void add_row(Rows<T>& rows, int64_t index, uint64_t blocks, Vec<T> weight) {
  rows.constrained |= weight != 0;
  rows.blocks[rows.count] = blocks;
  rows.weight[rows.count] = weight;
  rows.index[rows.count++] = int(index);
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
      Vec<T>* row = next_row<T>(*groups[g], tiles(nv));
      add_row<T>(*groups[g], i, pack_dense_row<T>(jac + i * nv * worlds + world, nv, worlds, count, row), w);
    }
  }
}

// ---- from factored rows

template <class T>
struct Column {
  int dof;
  T sign;
};

// Rows as rows.py describes them, with what is the same in all worlds listed once per call.
template <class T>
struct Factors {
  const T *cdof, *wrench, *axis;
  const int32_t *limit_dof, *limit_size;
  int64_t nv, limits, contacts, sides, worlds;
  bool fixed_axis;  // limit_axis has no worlds
  std::vector<Column<T>> columns;
  std::vector<size_t> start;     // of the columns of a side and contact row, side by side
  std::vector<uint64_t> blocks;  // of all rows

  void list_columns(const T* moved) {
    blocks.assign(size_t(limits + contacts), 0);
    for (int64_t r = 0; r < limits; ++r) {
      for (int k = 0; k < limit_size[r]; ++k) blocks[r] |= block_bit((limit_dof[r] + k) / kTile);
    }
    start.push_back(0);
    for (int64_t i = 0; i < sides * contacts; ++i) {
      for (int64_t j = 0; j < nv; ++j) {
        const T sign = moved[i * nv + j];
        if (sign == 0) continue;
        columns.push_back({int(j), sign});
        blocks[limits + i % contacts] |= block_bit(int(j / kTile));
      }
      start.push_back(columns.size());
    }
  }
};

template <class T>
void pack_limit(const Factors<T>& f, int64_t limit, int64_t world, int count, Vec<T>* row) {
  for (int k = 0; k < f.limit_size[limit]; ++k) {
    const T* source = f.axis + k * f.limits + limit;
    row[f.limit_dof[limit] + k] =
        f.fixed_axis ? fill<T>(*source) : load<T>(f.axis + (k * f.limits + limit) * f.worlds + world, count);
  }
}

// `cdof` holds the six numbers of each dof together.
template <class T>
void pack_contact(const Factors<T>& f, int64_t contact, int64_t world, int count, const Vec<T>* cdof, Vec<T>* row) {
  for (int64_t s = 0; s < f.sides; ++s) {
    Vec<T> wrench[6];
    for (int k = 0; k < 6; ++k) {
      wrench[k] = load<T>(f.wrench + ((s * 6 + k) * f.contacts + contact) * f.worlds + world, count);
    }
    const size_t list = size_t(s * f.contacts + contact);
    for (size_t e = f.start[list]; e < f.start[list + 1]; ++e) {
      const Vec<T>* axis = cdof + 6 * f.columns[e].dof;
      const Vec<T> force = wrench[0] * axis[0] + wrench[1] * axis[1] + wrench[2] * axis[2];
      const Vec<T> torque = wrench[3] * axis[3] + wrench[4] * axis[4] + wrench[5] * axis[5];
      row[f.columns[e].dof] += f.columns[e].sign * (force + torque);
    }
  }
}

template <class T>
void pack_cdof(const Factors<T>& f, const Turn& turn, Vec<T>* const* cdof) {
  for (int k = 0; k < 6; ++k) {
    for (int64_t j = 0; j < f.nv; ++j) {
      const T* source = f.cdof + (k * f.nv + j) * f.worlds + turn.world;
      for (int g = 0; g < turn.groups; ++g) {
        cdof[g][j * 6 + k] = load<T>(source + g * kLanes<T>, count_of<T>(turn, g));
      }
    }
  }
}

// The rows with weight (nefc, B) of each group of a turn. The others get their force, zero.
template <class T>
void pack_factored(const Factors<T>& f, const T* weight, const T* aref, T* efc_force, const Turn& turn,
                   Rows<T>* const* groups, Vec<T>* const* cdof) {
  const int nb = tiles(f.nv);
  bool have_cdof = false;
  for (int g = 0; g < turn.groups; ++g) clear<T>(*groups[g]);
  for (int64_t i = 0; i < f.limits + f.contacts; ++i) {
    for (int g = 0; g < turn.groups; ++g) {
      Rows<T>& rows = *groups[g];
      const int64_t world = turn.world + g * kLanes<T>, at = i * f.worlds + world;
      const int count = count_of<T>(turn, g);
      const Vec<T> w = load<T>(weight + at, count);
      if (!any<T>(w != 0)) {
        store<T>(efc_force + at, Vec<T>{}, count);
        continue;
      }
      Vec<T>* row = next_row<T>(rows, nb);
      for (int b = 0; b < nb; ++b) {
        if (!has_block(f.blocks[i], b)) continue;
        for (int c = b * kTile; c < (b + 1) * kTile; ++c) row[c] = Vec<T>{};
      }
      if (i < f.limits) {
        pack_limit<T>(f, i, world, count, row);
      } else {
        if (!have_cdof) pack_cdof<T>(f, turn, cdof);
        have_cdof = true;
        pack_contact<T>(f, i - f.limits, world, count, cdof[g], row);
      }
      rows.aref[rows.count] = load<T>(aref + at, count);
      add_row<T>(rows, i, f.blocks[i], w);
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

// H = A + J' diag(stiffness) J
template <class T>
void assemble(Rows<T>& rows, Vec<T>* base, Vec<T>* target, int nb) {
  int active = 0;
  for (int k = 0; k < rows.count; ++k) {
    if (any<T>(rows.stiffness[k] != 0)) rows.active[active++] = k;
  }
  for (int i = 0; i < nb; ++i) {
    int hits = 0, spans = 0;
    for (int a = 0; a < active; ++a) {
      const int k = rows.active[a];
      const uint64_t blocks = rows.blocks[k];
      if (!has_block(blocks, i)) continue;
      if (spans == 0 || rows.spans[spans - 1].blocks != blocks) rows.spans[spans++] = {blocks, hits, hits};
      const Vec<T>* row = rows.jac + size_t(k) * nb * kTile;
      for (int r = 0; r < kTile; ++r) rows.scaled[hits * kTile + r] = rows.stiffness[k] * row[i * kTile + r];
      rows.hits[hits++] = row;
      rows.spans[spans - 1].last = hits;
    }
    for (int j = 0; j <= i; ++j) {
      const Vec<T>* source = tile(base, i, j);
      Vec<T> acc[kTileSize];
      for (int e = 0; e < kTileSize; ++e) acc[e] = source[e];
      for (int s = 0; s < spans; ++s) {
        if (!has_block(rows.spans[s].blocks, j)) continue;
        for (int h = rows.spans[s].first; h < rows.spans[s].last; ++h) {
          const Vec<T>* left = rows.scaled + h * kTile;
          const Vec<T>* right = rows.hits[h] + j * kTile;
          add_outer(acc, left, right);
        }
      }
      Vec<T>* out = tile(target, i, j);
      for (int e = 0; e < kTileSize; ++e) out[e] = acc[e];
    }
  }
}

}  // namespace
