// What does not change between calls: sparse patterns and the structure of a model, told once and found by number.

#pragma once

#include <cstdint>
#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <vector>

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
  int64_t nv, nbody, ngiven, nJ, contacts, rows, axes, ne, nf, cone, solver, iterations, ls_iterations, noslip_iterations;
  double tolerance, ls_tolerance, noslip_tolerance;
  const int64_t *M_rowadr, *M_rownnz, *M_colind, *dof_bodyid;
  const int64_t *given_start, *given_dof;             // first value of each given row, then their number; their dofs
  const int64_t *row_axis;                            // of each contact row
  const int64_t *contact_row;                         // first row of each contact, then their number
  const int64_t *side_start, *side_root;              // the sides of each contact, and the tree each is described in
  const int64_t *column_start, *column_dof, *column_sign;  // the dofs of each side
};

struct Column {
  int dof, sign;
};

constexpr int64_t kNewton = 2;  // mjSOL_NEWTON

// The structure of the constraint problem of a model. Constraints are its given rows, then its contacts.
struct System {
  int64_t nv, nbody, ngiven, nJ, contacts, rows, axes, ne, nf, cone, solver, iterations, ls_iterations, noslip_iterations;
  double tolerance, ls_tolerance, noslip_tolerance;
  std::vector<int64_t> M_rowadr, M_rownnz, M_colind, dof_bodyid, given_start, given_dof, row_axis, contact_row;
  std::vector<int64_t> side_start, side_root, column_start;
  std::vector<Column> columns;
  std::vector<uint64_t> blocks;  // tile columns of J that a constraint touches
  std::vector<uint64_t> reach;   // those of J L^-1, of M = L' D L: of the dofs that carry these, too
  std::vector<int> order;        // of filling the slots: cones last
  std::vector<bool> fresh;       // at each place of the order: whether other trees are touched than before it
  int64_t cones = 0;

  explicit System(const SystemSpec& s)
      : nv(s.nv), nbody(s.nbody), ngiven(s.ngiven), nJ(s.nJ), contacts(s.contacts), rows(s.rows), axes(s.axes),
        ne(s.ne), nf(s.nf), cone(s.cone), solver(s.solver), iterations(s.iterations), ls_iterations(s.ls_iterations),
        noslip_iterations(s.noslip_iterations), tolerance(s.tolerance), ls_tolerance(s.ls_tolerance),
        noslip_tolerance(s.noslip_tolerance), M_rowadr(s.M_rowadr, s.M_rowadr + s.nv),
        M_rownnz(s.M_rownnz, s.M_rownnz + s.nv), dof_bodyid(s.dof_bodyid, s.dof_bodyid + s.nv),
        given_start(s.given_start, s.given_start + s.ngiven + 1), given_dof(s.given_dof, s.given_dof + s.nJ),
        row_axis(s.row_axis, s.row_axis + s.rows), contact_row(s.contact_row, s.contact_row + s.contacts + 1),
        side_start(s.side_start, s.side_start + s.contacts + 1),
        side_root(s.side_root, s.side_root + s.side_start[s.contacts]),
        column_start(s.column_start, s.column_start + s.side_start[s.contacts] + 1) {
    M_colind.assign(s.M_colind, s.M_colind + nC());
    for (int64_t e = 0; e < column_start.back(); ++e) columns.push_back({int(s.column_dof[e]), int(s.column_sign[e])});
    for (int64_t i = 0; i < constraints(); ++i) cones += is_cone(i);
  }

  int64_t nC() const { return nv ? M_rowadr[nv - 1] + M_rownnz[nv - 1] : 0; }
  int64_t constraints() const { return ngiven + contacts; }
  int64_t root(int64_t dof) const { return M_colind[size_t(M_rowadr[size_t(dof)])]; }  // of the dofs that carry it
  bool is_cone(int64_t constraint) const {
    const int64_t contact = constraint - ngiven;
    return cone && contact >= 0 && contact_row[size_t(contact) + 1] - contact_row[size_t(contact)] > 1;
  }
  // Whether there is more than rows that only push, and Newton's method.
  bool general() const { return ne || nf || cones || solver != kNewton; }
  // Slots that a world can use: each cone has as many as the contact with most axes.
  int64_t slots() const { return cones ? constraints() - cones + cone_slots() : ngiven + rows; }
  int64_t cone_slots() const { return cones * axes; }

  // Constraints of the same trees together, so that a slot holds rows of no others: rows of four humanoids, mixed, would
  // make a slot as wide as all of them. Of these those of many blocks first, so that the worlds' rows in a slot are
  // alike (one humanoid: the slots of a group then add to 340 tiles of H in all, in the order of rows to 410).
  template <class Bit>
  void list_blocks(const Bit& block_bit) {
    blocks.assign(size_t(constraints()), 0);
    reach = blocks;
    std::vector<uint64_t> trees(blocks.size(), 0);  // a bit for the root of each, roots 64 apart share one
    const auto touch = [&](int64_t constraint, int64_t dof) {
      blocks[size_t(constraint)] |= block_bit(dof);
      for (int64_t e = 0; e < M_rownnz[dof]; ++e) reach[size_t(constraint)] |= block_bit(M_colind[M_rowadr[dof] + e]);
      trees[size_t(constraint)] |= uint64_t(1) << (root(dof) & 63);
    };
    for (int64_t r = 0; r < ngiven; ++r) {
      for (int64_t e = given_start[r]; e < given_start[r + 1]; ++e) touch(r, given_dof[e]);
    }
    for (int64_t c = 0; c < contacts; ++c) {
      for (int64_t e = column_start[side_start[c]]; e < column_start[side_start[c + 1]]; ++e) {
        touch(ngiven + c, columns[size_t(e)].dof);
      }
    }
    order.resize(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      if (is_cone(a) != is_cone(b)) return is_cone(b);
      if (trees[a] != trees[b]) return trees[a] < trees[b];
      return __builtin_popcountll(blocks[a]) > __builtin_popcountll(blocks[b]);
    });
    for (size_t o = 0; o < order.size(); ++o) fresh.push_back(o > 0 && trees[order[o]] != trees[order[o - 1]]);
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

}  // namespace
