// Constraint rows in factored form, as rows.py describes them: only those in use become rows of J.
//
// Worlds seldom use the same rows (humanoid lying about: 12 of 196 a world, 63 in some of eight worlds), so each world
// fills the slots of its group with its own, 22 there. The solve took a sixth longer with one row in a slot.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "rows.h"

namespace {

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
  std::vector<int> order;        // of filling the slots

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
    // Rows of many blocks first, so that the worlds' rows in a slot are alike (humanoid: the slots of a group then add
    // to 340 tiles of H in all, in the order of rows to 410).
    order.resize(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](int a, int b) { return size(a) > size(b); });
  }

  int size(int row) const { return __builtin_popcountll(blocks[row]); }
};

// J of a limit of the world `world`, into its lane of a slot.
template <class T>
void pack_limit(const Factors<T>& f, int64_t limit, int64_t world, int lane, Vec<T>* slot) {
  for (int k = 0; k < f.limit_size[limit]; ++k) {
    const int64_t at = k * f.limits + limit;
    slot[f.limit_dof[limit] + k][lane] = f.axis[f.fixed_axis ? at : at * f.worlds + world];
  }
}

// J of a contact row. `cdof` holds the six numbers of each dof together.
template <class T>
void pack_contact(const Factors<T>& f, int64_t contact, int64_t world, int lane, const Vec<T>* cdof, Vec<T>* slot) {
  for (int64_t s = 0; s < f.sides; ++s) {
    T wrench[6];
    for (int k = 0; k < 6; ++k) wrench[k] = f.wrench[((s * 6 + k) * f.contacts + contact) * f.worlds + world];
    const size_t list = size_t(s * f.contacts + contact);
    for (size_t e = f.start[list]; e < f.start[list + 1]; ++e) {
      const Vec<T>* axis = cdof + 6 * f.columns[e].dof;
      T power[2] = {};
      for (int k = 0; k < 6; ++k) power[k % 2] += wrench[k] * axis[k][lane];
      slot[f.columns[e].dof][lane] += f.columns[e].sign * (power[0] + power[1]);
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

constexpr size_t kAhead = 8;  // rows whose weights are asked for in advance

template <class T>
inline void add_entry(Rows<T>& rows, int64_t row, int lane, uint64_t blocks, T weight) {
  const int slot = rows.filled[lane]++;
  if (slot == rows.count) {
    rows.blocks[slot] = 0;
    rows.weight[slot] = rows.aref[slot] = Vec<T>{};
    ++rows.count;
  }
  rows.blocks[slot] |= blocks;
  rows.weight[slot][lane] = weight;
  rows.constrained[lane] = -1;
  rows.entries[rows.entry_count++] = {int(row), slot, lane};
}

// Lists the rows with weight (nefc, B) of each group of a turn, asks for what makes them, and clears the forces of all.
// Returns whether there are any contacts.
template <class T>
bool list_rows(const Factors<T>& f, const T* weight, const T* aref, T* efc_force, const Turn& turn,
               Rows<T>* const* groups) {
  bool contacts = false;
  const size_t total = f.order.size();
  for (int g = 0; g < turn.groups; ++g) clear<T>(*groups[g]);
  for (size_t o = 0; o < total; ++o) {
    const int64_t i = f.order[o], ahead = o + kAhead < total ? f.order[o + kAhead] : i;
    for (int g = 0; g < turn.groups; ++g) {
      const int64_t world = turn.world + g * kLanes<T>, at = i * f.worlds + world;
      const int count = count_of<T>(turn, g);
      prefetch(weight + ahead * f.worlds + world);
      const Vec<T> w = load<T>(weight + at, count);
      store<T>(efc_force + at, Vec<T>{}, count);
      if (!any<T>(w != 0)) continue;
      for (int lane = 0; lane < count; ++lane) {
        if (w[lane] != 0) add_entry<T>(*groups[g], i, lane, f.blocks[i], w[lane]);
      }
      prefetch(aref + at);
      if (i < f.limits) continue;
      contacts = true;
      for (int64_t k = 0; k < f.sides * 6; ++k) {
        prefetch(f.wrench + (k * f.contacts + i - f.limits) * f.worlds + world);
      }
    }
  }
  return contacts;
}

// The rows with weight (nefc, B) of each group of a turn; all forces become zero.
template <class T>
void pack_factored(const Factors<T>& f, const T* weight, const T* aref, T* efc_force, const Turn& turn,
                   Rows<T>* const* groups, Vec<T>* const* cdof) {
  const int nb = tiles(f.nv);
  if (list_rows<T>(f, weight, aref, efc_force, turn, groups)) pack_cdof<T>(f, turn, cdof);
  for (int g = 0; g < turn.groups; ++g) {
    Rows<T>& rows = *groups[g];
    for (int k = 0; k < rows.count; ++k) {
      Vec<T>* slot = rows.jac + size_t(k) * nb * kTile;
      for (int c = 0; c < nb * kTile; ++c) {
        if (has_block(rows.blocks[k], c / kTile)) slot[c] = Vec<T>{};
      }
    }
    for (int e = 0; e < rows.entry_count; ++e) {
      const Entry entry = rows.entries[e];
      const int64_t world = turn.world + g * kLanes<T> + entry.lane;
      Vec<T>* slot = rows.jac + size_t(entry.slot) * nb * kTile;
      rows.aref[entry.slot][entry.lane] = aref[entry.row * f.worlds + world];
      if (entry.row < f.limits) {
        pack_limit<T>(f, entry.row, world, entry.lane, slot);
      } else {
        pack_contact<T>(f, entry.row - f.limits, world, entry.lane, cdof[g], slot);
      }
    }
  }
}

}  // namespace
