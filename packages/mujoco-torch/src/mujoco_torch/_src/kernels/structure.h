// What does not change between calls: sparse patterns and the structure of a model, told once and found by number.

#pragma once

#include <cstdint>
#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "matrix.h"

namespace {

// What Python passes: `_Pattern` in __init__.py has the same fields in the same order.
struct PatternSpec {
  int64_t rows, columns;
  const int64_t *start, *column;
  const double* value;
};

// A sparse constant matrix by rows.
struct Pattern {
  int64_t rows, columns;
  std::vector<int64_t> start, column;
  std::vector<double> value;

  explicit Pattern(const PatternSpec& s)
      : rows(s.rows), columns(s.columns), start(s.start, s.start + s.rows + 1),
        column(s.column, s.column + s.start[s.rows]), value(s.value, s.value + s.start[s.rows]) {}
};

// What Python passes: `_System` in __init__.py has the same fields in the same order.
struct SystemSpec {
  int64_t nv, nbody, ngiven, nJ, contacts, rows, axes, ne, nf, cone, solver, iterations, ls_iterations,
      noslip_iterations;
  double tolerance, ls_tolerance, noslip_tolerance;
  const int64_t *M_rowadr, *M_rownnz, *M_colind, *dof_bodyid;
  const int64_t *given_start, *given_dof;             // first value of each given row, then their number; their dofs
  const int64_t *contact_row;                         // first row of each contact, then their number
  const int64_t *side_start, *side_root;              // the sides of each contact, and the tree each is described in
  const int64_t *column_start, *column_dof, *column_sign;  // the dofs of each side
  int64_t parts;                                           // none if it cannot be parted
  const int64_t *part_key, *part_dof, *part_given, *part_contact;  // of all parts, one after the other
};

constexpr int64_t kNewton = 2;  // mjSOL_NEWTON
constexpr int kWord = 32;       // dofs in a word of the tables of signs

// What a constraint is made of. A `single` is a given row of one dof.
enum class Kind { single, given, normal, pyramid, cone };

struct System;

// Trees that no constraint can join with others are a system of their own. For each dof, given row and contact of it:
// which one that is in the whole.
struct Part {
  const System* system;
  std::vector<int64_t> dof, given, contact;
};

// The structure of the constraint problem of a model. Constraints are its given rows, then its contacts.
struct System {
  int64_t nv, nbody, ngiven, nJ, contacts, rows, axes, ne, nf, cone, solver, iterations, ls_iterations,
      noslip_iterations;
  double tolerance, ls_tolerance, noslip_tolerance;
  std::vector<int64_t> M_rowadr, M_rownnz, M_colind, dof_bodyid, given_start, given_dof, contact_row;
  std::vector<int64_t> side_start, side_root;
  std::vector<uint32_t> plus, minus;  // of each side, the dofs that move it, forward or backward: a bit each
  std::vector<int64_t> below_start, below;  // the dofs that each dof carries, and where they start
  std::vector<size_t> place;  // where each element of M is in tiles
  std::vector<uint64_t> mass_shape;
  std::vector<uint64_t> blocks;  // tile columns of J that a constraint touches
  std::vector<uint64_t> reach;   // those of J L^-1, of M = L' D L: of the dofs that carry these, too
  std::vector<int> singles;      // by dof
  std::vector<int> order;        // of all others, as they fill the pieces of rows.h; cones last
  std::vector<bool> fresh;       // at each place of the order: whether it cannot share a piece with those before it
  Part all;                      // itself
  std::vector<Part> parts;       // what is solved by itself; `all` if it cannot be parted

  explicit System(const SystemSpec& s)
      : nv(s.nv), nbody(s.nbody), ngiven(s.ngiven), nJ(s.nJ), contacts(s.contacts), rows(s.rows), axes(s.axes),
        ne(s.ne), nf(s.nf), cone(s.cone), solver(s.solver), iterations(s.iterations), ls_iterations(s.ls_iterations),
        noslip_iterations(s.noslip_iterations), tolerance(s.tolerance), ls_tolerance(s.ls_tolerance),
        noslip_tolerance(s.noslip_tolerance), M_rowadr(s.M_rowadr, s.M_rowadr + s.nv),
        M_rownnz(s.M_rownnz, s.M_rownnz + s.nv), dof_bodyid(s.dof_bodyid, s.dof_bodyid + s.nv),
        given_start(s.given_start, s.given_start + s.ngiven + 1), given_dof(s.given_dof, s.given_dof + s.nJ),
        contact_row(s.contact_row, s.contact_row + s.contacts + 1),
        side_start(s.side_start, s.side_start + s.contacts + 1),
        side_root(s.side_root, s.side_root + s.side_start[s.contacts]) {
    M_colind.assign(s.M_colind, s.M_colind + nC());
    place_mass();
    list_below();
    list_columns(s);
    list_order();
    all = {this, count(nv), count(ngiven), count(contacts)};
    list_parts(s);
  }

  int64_t nC() const { return nv ? M_rowadr[nv - 1] + M_rownnz[nv - 1] : 0; }
  int64_t constraints() const { return ngiven + contacts; }
  int64_t words() const { return (nv + kWord - 1) / kWord; }
  int64_t root(int64_t dof) const { return M_colind[size_t(M_rowadr[size_t(dof)])]; }  // of the dofs that carry it
  int64_t dof_of(int64_t single) const { return given_dof[size_t(given_start[size_t(single)])]; }
  Kind kind(int64_t constraint) const {
    const int64_t i = constraint - ngiven;
    if (i < 0) return given_start[constraint + 1] - given_start[constraint] == 1 ? Kind::single : Kind::given;
    if (contact_row[i + 1] - contact_row[i] == 1) return Kind::normal;
    return cone ? Kind::cone : Kind::pyramid;
  }
  // Rows of J that make the rows of a constraint.
  int64_t axes_of(int64_t constraint) const {
    const int64_t i = constraint - ngiven;
    if (i < 0) return 1;
    const int64_t count = contact_row[i + 1] - contact_row[i];
    return kind(constraint) == Kind::pyramid ? count / 2 + 1 : count;
  }
  // Whether there is more than rows that only push, and Newton's method.
  bool general() const { return ne || nf || (cone && axes > 1) || solver != kNewton; }

 private:
  void place_mass() {
    const int nb = tiles(nv);
    mass_shape.resize(size_t(nb));
    for (int i = 0; i < nb; ++i) mass_shape[i] = block_bit(i);
    for (int64_t i = 0; i < nv; ++i) {
      for (int64_t e = M_rowadr[i]; e < M_rowadr[i] + M_rownnz[i]; ++e) {
        const int64_t j = M_colind[e];
        mass_shape[i / kTile] |= block_bit(int(j / kTile));
        place.push_back(element(i, j));
      }
    }
  }

  void list_below() {
    std::vector<std::vector<int64_t>> carried(size_t(nv), std::vector<int64_t>{});
    for (int64_t i = 0; i < nv; ++i) {
      for (int64_t e = M_rowadr[i]; e + 1 < M_rowadr[i] + M_rownnz[i]; ++e) carried[size_t(M_colind[e])].push_back(i);
    }
    for (const auto& dofs : carried) {
      below_start.push_back(int64_t(below.size()));
      below.insert(below.end(), dofs.begin(), dofs.end());
    }
    below_start.push_back(int64_t(below.size()));
  }

  void list_columns(const SystemSpec& s) {
    blocks.assign(size_t(constraints()), 0);
    reach = blocks;
    const auto touch = [&](int64_t constraint, int64_t dof) {
      blocks[constraint] |= block_bit(int(dof / kTile));
      for (int64_t e = M_rowadr[dof]; e < M_rowadr[dof] + M_rownnz[dof]; ++e) {
        reach[constraint] |= block_bit(int(M_colind[e] / kTile));
      }
    };
    for (int64_t r = 0; r < ngiven; ++r) {
      for (int64_t e = given_start[r]; e < given_start[r + 1]; ++e) touch(r, given_dof[e]);
    }
    plus.assign(side_root.size() * words(), 0);
    minus = plus;
    for (int64_t c = 0; c < contacts; ++c) {
      for (int64_t side = side_start[c]; side < side_start[c + 1]; ++side) {
        for (int64_t e = s.column_start[side]; e < s.column_start[side + 1]; ++e) {
          const int64_t dof = s.column_dof[e];
          auto& signs = s.column_sign[e] > 0 ? plus : minus;
          signs[side * words() + dof / kWord] |= uint32_t(1) << (dof % kWord);
          touch(ngiven + c, dof);
        }
      }
    }
  }

  static std::vector<int64_t> count(int64_t n) {
    std::vector<int64_t> numbers(static_cast<size_t>(n));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }

  void list_parts(const SystemSpec& s);

  // A bit for the root of each tree that a constraint touches; roots 64 apart share one.
  uint64_t trees(int64_t constraint) const {
    uint64_t bits = 0;
    const auto touch = [&](int64_t dof) { bits |= uint64_t(1) << (root(dof) & 63); };
    if (constraint < ngiven) {
      for (int64_t e = given_start[constraint]; e < given_start[constraint + 1]; ++e) touch(given_dof[e]);
      return bits;
    }
    const int64_t contact = constraint - ngiven;
    for (int64_t side = side_start[contact]; side < side_start[contact + 1]; ++side) {
      for (int64_t dof = 0; dof < nv; ++dof) {
        const size_t word = size_t(side * words() + dof / kWord);
        if ((plus[word] | minus[word]) >> (dof % kWord) & 1) touch(dof);
      }
    }
    return bits;
  }

  // Constraints of one kind and of the same trees together, so that a piece holds no others: rows of four humanoids,
  // mixed, would make a piece as wide as all of them. Of these those of many blocks first, so that the worlds' rows in
  // a piece are alike.
  void list_order() {
    using Group = std::tuple<Kind, int64_t, uint64_t>;
    std::vector<Group> groups;
    for (int64_t i = 0; i < constraints(); ++i) {
      groups.emplace_back(kind(i), axes_of(i), trees(i));
      (kind(i) == Kind::single ? singles : order).push_back(int(i));
    }
    std::stable_sort(singles.begin(), singles.end(), [&](int a, int b) { return dof_of(a) < dof_of(b); });
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      if (groups[a] != groups[b]) return groups[a] < groups[b];
      return __builtin_popcountll(blocks[a]) > __builtin_popcountll(blocks[b]);
    });
    for (size_t o = 0; o < order.size(); ++o) fresh.push_back(o == 0 || groups[order[o]] != groups[order[o - 1]]);
  }
};

// Things told once, for the life of the process, under a number made of their content.
template <class X>
class Registry {
 public:
  void add(int64_t key, std::unique_ptr<X> value) {
    std::lock_guard<std::mutex> guard(mutex_);
    known_.emplace(key, std::move(value));
  }
  const X& find(int64_t key) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto at = known_.find(key);
    if (at == known_.end()) throw std::runtime_error("mujoco_torch: an operator was given an unknown structure");
    return *at->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<int64_t, std::unique_ptr<X>> known_;
};

Registry<Pattern> patterns;
Registry<System> systems;

inline void System::list_parts(const SystemSpec& s) {
  const int64_t *dof = s.part_dof, *given = s.part_given, *contact = s.part_contact;
  if (!s.parts) parts.push_back(all);
  for (int64_t i = 0; i < s.parts; ++i) {
    const System& part = systems.find(s.part_key[i]);
    parts.push_back({&part, {dof, dof + part.nv}, {given, given + part.ngiven}, {contact, contact + part.contacts}});
    dof += part.nv;
    given += part.ngiven;
    contact += part.contacts;
  }
}

}  // namespace
