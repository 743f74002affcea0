// Constraint rows made where they are in use: from the values of given rows, and from contact frames and motion axes.
//
// Worlds seldom use the same rows (humanoid lying about: 12 of 196 a world, 63 in some of eight worlds), so each world
// fills the pieces of its group with its own constraints. The solve took a sixth longer with one row in a slot.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "rows.h"
#include "structure.h"

namespace {

// What rows of a part of a system are made of, with the world last; D is zero in a constraint that is not active.
// Constraints, contacts and dofs are numbered as in the part; functions say where in the arrays, which are of the whole,
// theirs are.
template <class T>
struct Factors {
  const System *whole, *system;
  const Part* part;
  const T *cdof, *com, *pos, *frame, *edge, *given, *given_weight, *given_reference, *contact_weight,
      *contact_reference, *scale, *friction, *damping, *loss, *qvel;
  int64_t worlds, reference_axes;
  bool fixed_given;  // the given rows have no worlds

  Factors of(const Part& other) const {
    Factors f = *this;
    f.system = other.system;
    f.part = &other;
    return f;
  }

  int64_t dof_at(int64_t i) const { return part->dof[size_t(i)]; }
  int64_t given_at(int64_t i) const { return part->given[size_t(i)]; }
  int64_t contact_at(int64_t i) const { return part->contact[size_t(i)]; }
  int64_t first_value(int64_t row) const { return whole->given_start[size_t(given_at(row))]; }
  int64_t first_row(int64_t contact) const { return whole->contact_row[size_t(contact_at(contact))]; }
  const T* weight(int64_t constraint) const {
    const int64_t contact = constraint - system->ngiven;
    return contact < 0 ? given_weight + given_at(constraint) * worlds : contact_weight + contact_at(contact) * worlds;
  }
  // Row k of an array of several rows for each contact.
  const T* of_contact(const T* array, int64_t k, int64_t contact) const {
    return array + (k * whole->contacts + contact_at(contact)) * worlds;
  }
};

// The numbers of the dofs of a part, of an array of one number for each dof of the whole.
template <class T>
void load_dofs(const Factors<T>& f, const T* source, int count, Vec<T>* x, int padded) {
  const int64_t n = f.system->nv;
  for (int i = 0; i < padded; ++i) x[i] = i < n ? load<T>(source + f.dof_at(i) * f.worlds, count) : Vec<T>{};
}

template <class T>
void store_dofs(const Factors<T>& f, T* target, const Vec<T>* x, int count) {
  for (int64_t i = 0; i < f.system->nv; ++i) store<T>(target + f.dof_at(i) * f.worlds, x[i], count);
}

constexpr size_t kAhead = 8;  // constraints whose weights are asked for in advance

// The bounds of a given row's residual, as System::general() needs them.
template <class T>
inline void set_bounds(Rows<T>& rows, const Factors<T>& f, int64_t constraint, Mask<T> used, Vec<T> weight, int slot) {
  const System& s = *f.system;
  const T infinite = std::numeric_limits<T>::infinity();
  const bool equality = constraint < s.ne, friction = !equality && constraint < s.ne + s.nf;
  const Vec<T> bound = friction ? f.loss[f.given_at(constraint) - f.whole->ne] / weight : fill<T>(infinite);
  rows.low[slot] = used ? -bound : rows.low[slot];
  rows.high[slot] = !used ? rows.high[slot] : equality || friction ? bound : Vec<T>{};
}

template <class T>
inline void open_slot(Rows<T>& rows) {
  const int slot = rows.count++;
  rows.weight[slot] = rows.aref[slot] = rows.damping[slot] = Vec<T>{};
  rows.low[slot] = fill<T>(-std::numeric_limits<T>::infinity());
  rows.high[slot] = Vec<T>{};
}

// ---- rows of one dof

// A row goes to the slot of its dof, to a new one where a world has two.
template <class T>
void pack_singles(const Factors<T>& f, int64_t world, int count, Rows<T>& rows) {
  const System& s = *f.system;
  const Mask<T> present = first_lanes<T>(count);
  for (const int row : s.singles) {
    const Vec<T> weight = load<T>(f.weight(row) + world, count);
    const Mask<T> used = (weight != 0) & present;
    if (!any<T>(used)) continue;
    const int dof = int(s.dof_of(row));
    int k = rows.count - 1;
    if (k < 0 || rows.dof[k] != dof || any<T>(used & (rows.weight[k] != 0))) {
      open_slot<T>(rows);
      rows.dof[++k] = dof;
      rows.value[k] = Vec<T>{};
      rows.single[k] = ~Mask<T>{};
    }
    const int64_t e = f.first_value(row), at = f.given_at(row);
    const Vec<T> value = f.fixed_given ? fill<T>(f.given[e]) : load<T>(f.given + e * f.worlds + world, count);
    rows.constrained |= used;
    rows.weight[k] = used ? weight : rows.weight[k];
    rows.value[k] = used ? value : rows.value[k];
    rows.single[k] = used ? Mask<T>{} + row : rows.single[k];
    rows.aref[k] = used ? load<T>(f.given_reference + at * f.worlds + world, count) : rows.aref[k];
    rows.damping[k] = used ? fill<T>(f.damping[at]) : rows.damping[k];
    if (s.general()) set_bounds<T>(rows, f, row, used, weight, k);
  }
  rows.singles = rows.count;
}

// ---- pieces

// The next piece of a world, opened where there is none.
template <class T>
inline int next_piece(Rows<T>& rows, const System& s, int64_t constraint, int* filled) {
  const int p = (*filled)++;
  if (p < rows.pieces) return p;
  const Kind kind = s.kind(constraint);
  const Piece piece = {0, rows.count, rows.rows, int(s.axes_of(constraint)), kind == Kind::pyramid};
  rows.piece[rows.pieces++] = piece;
  rows.rows += piece.axes;
  rows.cones += kind == Kind::cone;
  for (int k = 0; k < piece.slots(); ++k) open_slot<T>(rows);
  if (kind != Kind::cone) rows.plain = rows.count;
  for (int lane = 0; lane < kLanes<T>; ++lane) rows.owner[p * kLanes<T> + lane] = -1;
  return p;
}

// Gives each constraint with weight of each group of a turn its piece, and asks for what makes it.
template <class T>
void list_pieces(const Factors<T>& f, const Turn& turn, Rows<T>* const* groups) {
  const System& s = *f.system;
  const size_t total = s.order.size();
  int filled[kTurn][kLanes<T>];
  for (size_t o = 0; o < total; ++o) {
    const int64_t i = s.order[o], ahead = o + kAhead < total ? s.order[o + kAhead] : i, contact = i - s.ngiven;
    for (int g = 0; g < turn.groups; ++g) {
      Rows<T>& rows = *groups[g];
      if (s.fresh[o]) {
        for (int& next : filled[g]) next = rows.pieces;
      }
      const int64_t world = turn.world + g * kLanes<T>;
      const int count = count_of<T>(turn, g);
      prefetch(f.weight(ahead) + world);
      const uint32_t used = to_bits<T>(load<T>(f.weight(i) + world, count) != 0) & ((uint32_t(1) << count) - 1);
      if (!used) continue;
      for_lanes(used, [&](int lane) {
        const int p = next_piece<T>(rows, s, i, &filled[g][lane]);
        rows.piece[p].blocks |= s.blocks[size_t(i)];
        rows.owner[p * kLanes<T> + lane] = int(i);
        rows.constrained[lane] = -1;
      });
      if (contact < 0) continue;
      for (int64_t k = 0; k < 3; ++k) prefetch(f.of_contact(f.pos, k, contact) + world);
      for (int64_t k = 0; k < 9; ++k) prefetch(f.of_contact(f.frame, k, contact) + world);
    }
  }
}

// Given rows of several dofs, a world at a time.
template <class T>
void pack_given(const Factors<T>& f, int64_t world, const int* owner, Rows<T>& rows, const Piece& piece, Vec<T>* jac,
                int nb) {
  const System& s = *f.system;
  for (int c = 0; c < nb * kTile; ++c) jac[c] = Vec<T>{};
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    const int64_t row = owner[lane], at = world + lane;
    if (row < 0) continue;
    int64_t value = f.first_value(row);
    for (int64_t e = s.given_start[row]; e < s.given_start[row + 1]; ++e, ++value) {
      jac[s.given_dof[e]][lane] = f.given[f.fixed_given ? value : value * f.worlds + at];
    }
    rows.weight[piece.slot][lane] = f.weight(row)[at];
    rows.aref[piece.slot][lane] = f.given_reference[f.given_at(row) * f.worlds + at];
    rows.damping[piece.slot][lane] = f.damping[f.given_at(row)];
    Mask<T> used = {};
    used[lane] = -1;
    if (s.general()) set_bounds<T>(rows, f, row, used, rows.weight[piece.slot], piece.slot);
  }
}

// One contact of each world: where it is, its frame, and how far its rows of J go along the axes.
template <class T>
struct Spot {
  Vec<T> pos[3], frame[9], reach[kMaxAxes];
};

// A rotation and a translation: the power along an axis is their product with a motion.
template <class T>
struct Wrench {
  Vec<T> torque[3], force[3];
};

template <class T>
inline Wrench<T> wrench(const Spot<T>& spot, const Vec<T>* arm, int axis) {
  const Vec<T>*along = spot.frame + 3 * (axis % 3), reach = spot.reach[axis];
  if (axis >= 3) return {{reach * along[0], reach * along[1], reach * along[2]}, {}};
  const Vec<T> x = reach * along[0], y = reach * along[1], z = reach * along[2];
  return {{arm[1] * z - arm[2] * y, arm[2] * x - arm[0] * z, arm[0] * y - arm[1] * x}, {x, y, z}};
}

template <class T>
inline Vec<T> power(const Wrench<T>& w, const Vec<T>* cdof, size_t stride) {
  const Vec<T> turn = w.torque[0] * cdof[0] + w.torque[1] * cdof[stride] + w.torque[2] * cdof[2 * stride];
  return turn + w.force[0] * cdof[3 * stride] + w.force[1] * cdof[4 * stride] + w.force[2] * cdof[5 * stride];
}

// What a world's contact gives to its lane: the slots, and the spot.
template <class T>
inline void pack_spot(const Factors<T>& f, int64_t contact, int64_t world, int lane, Rows<T>& rows, const Piece& piece,
                      int cone, Spot<T>& spot) {
  const int64_t first = f.first_row(contact);
  const T* friction = f.friction + f.contact_at(contact);
  for (int k = 0; k < 3; ++k) spot.pos[k][lane] = f.of_contact(f.pos, k, contact)[world];
  for (int k = 0; k < 9; ++k) spot.frame[k][lane] = f.of_contact(f.frame, k, contact)[world];
  const T weight = f.weight(f.system->ngiven + contact)[world];
  T reference[kMaxAxes] = {};
  for (int64_t a = 0; a < f.reference_axes && a < piece.axes; ++a) {
    reference[a] = f.of_contact(f.contact_reference, a, contact)[world];
  }
  for (int a = 0; a < piece.axes; ++a) {
    const T reach = cone >= 0       ? friction[a * f.whole->contacts]
                    : a == 0        ? T(1)
                                    : f.edge[a * f.whole->rows + first + 2 * (a - 1)];
    spot.reach[a][lane] = reach;
    reference[a] *= reach;
  }
  for (int k = 0; k < piece.slots(); ++k) {
    const int a = piece.pyramid ? k / 2 + 1 : k;
    const T along = !piece.pyramid ? reference[a] : k % 2 ? reference[0] - reference[a] : reference[0] + reference[a];
    rows.aref[piece.slot + k][lane] = along;
    rows.damping[piece.slot + k][lane] = f.damping[f.whole->ngiven + first + k];
    rows.weight[piece.slot + k][lane] = weight * f.scale[first + k];
  }
  if (cone < 0) return;
  const T mu = friction[0];
  rows.cone_mu[cone][lane] = mu;
  rows.cone_weight[cone][lane] = weight / (mu * mu);
}

// The rows of J of the first sides of the contacts, or what the next ones add to them. `cdof` (6 x stride) are the
// group's motion axes.
template <class T, int axes>
void pack_sides(const System& s, const Wrench<T>* wrenches, const int64_t* side, const Vec<T>* cdof, bool more,
                uint64_t blocks, Vec<T>* jac, int nb) {
  const size_t stride = size_t(nb) * kTile;
  Mask<T> plus = {}, minus = {};
  for (int b = 0; b < nb; ++b) {
    if (b * kTile % kWord == 0) {
      for (int lane = 0; lane < kLanes<T>; ++lane) {
        const size_t word = size_t(side[lane] * s.words() + b * kTile / kWord);
        plus[lane] = side[lane] < 0 ? 0 : s.plus[word];
        minus[lane] = side[lane] < 0 ? 0 : s.minus[word];
      }
    }
    if (!has_block(blocks, b)) continue;
    for (int c = b * kTile; c < (b + 1) * kTile; ++c) {
      const auto bit = decltype(plus[0] + plus[0])(uint32_t(1) << c % kWord);
      const Mask<T> forward = (plus & bit) != 0, moves = ((plus | minus) & bit) != 0;
      for (int a = 0; a < axes; ++a) {
        const Vec<T> x = power<T>(wrenches[a], cdof + c, stride), value = moves ? (forward ? x : -x) : Vec<T>{};
        jac[a * stride + c] = more ? jac[a * stride + c] + value : value;
      }
    }
  }
}

// The contacts of a piece: slots and rows of J. A row is an axis times its friction; the normal of a pyramid by itself.
template <class T>
void pack_contacts(const Factors<T>& f, int64_t world, const int* owner, Rows<T>& rows, const Piece& piece, int cone,
                   const Vec<T>* cdof, Vec<T>* jac, int nb) {
  const System& s = *f.system;
  const size_t stride = size_t(nb) * kTile;
  Spot<T> spot = {};
  int64_t sides = 1;
  if (cone >= 0) rows.cone_weight[cone] = rows.cone_mu[cone] = Vec<T>{};
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    const int64_t contact = owner[lane] - s.ngiven;
    if (owner[lane] < 0) continue;
    pack_spot<T>(f, contact, world + lane, lane, rows, piece, cone, spot);
    sides = std::max(sides, s.side_start[contact + 1] - s.side_start[contact]);
  }
  for (int64_t number = 0; number < sides; ++number) {
    Vec<T> arm[3] = {};
    int64_t side[kLanes<T>];
    for (int lane = 0; lane < kLanes<T>; ++lane) {
      const int64_t contact = owner[lane] - s.ngiven;
      side[lane] = owner[lane] < 0 ? -1 : s.side_start[contact] + number;
      if (side[lane] < 0 || side[lane] >= s.side_start[contact + 1]) {
        side[lane] = -1;
        continue;
      }
      for (int k = 0; k < 3; ++k) {
        const T com = f.com[(k * s.nbody + s.side_root[side[lane]]) * f.worlds + world + lane];
        arm[k][lane] = spot.pos[k][lane] - com;
      }
    }
    Wrench<T> wrenches[kMaxAxes];
    for (int a = 0; a < piece.axes; ++a) wrenches[a] = wrench<T>(spot, arm, a);
    int a = 0;
    for (; a + 3 <= piece.axes; a += 3) {
      pack_sides<T, 3>(s, wrenches + a, side, cdof, number > 0, piece.blocks, jac + a * stride, nb);
    }
    for (; a < piece.axes; ++a) {
      pack_sides<T, 1>(s, wrenches + a, side, cdof, number > 0, piece.blocks, jac + a * stride, nb);
    }
  }
}

// The rows of each group of a turn that are active, with their reference at the velocity: aref = ref - damping J qvel.
// `velocity` is scratch, one number a dof, and `cdof` six.
template <class T>
void pack_factored(const Factors<T>& f, const Turn& turn, Rows<T>* const* groups, Vec<T>* cdof, Vec<T>* velocity) {
  const System& s = *f.system;
  const int nb = tiles(s.nv);
  const size_t stride = size_t(nb) * kTile;
  for (int g = 0; g < turn.groups; ++g) {
    clear<T>(*groups[g]);
    groups[g]->axes = int(s.axes);
    pack_singles<T>(f, turn.world + g * kLanes<T>, count_of<T>(turn, g), *groups[g]);
    groups[g]->plain = groups[g]->count;
  }
  list_pieces<T>(f, turn, groups);
  for (int g = 0; g < turn.groups; ++g) {
    Rows<T>& rows = *groups[g];
    const int64_t world = turn.world + g * kLanes<T>;
    const int count = count_of<T>(turn, g);
    if (rows.pieces) {
      for (int k = 0; k < 6; ++k) {
        load_dofs<T>(f, f.cdof + k * f.whole->nv * f.worlds + world, count, cdof + k * stride, int(stride));
      }
    }
    for (int p = 0; p < rows.pieces; ++p) {
      const Piece& piece = rows.piece[p];
      const int* owner = rows.owner + p * kLanes<T>;
      Vec<T>* jac = rows.jac + piece.row * stride;
      const int cone = p - (rows.pieces - rows.cones);
      if (*std::max_element(owner, owner + kLanes<T>) < s.ngiven) {
        pack_given<T>(f, world, owner, rows, piece, jac, nb);
      } else {
        pack_contacts<T>(f, world, owner, rows, piece, cone, cdof, jac, nb);
      }
    }
    if (!rows.count) continue;
    load_dofs<T>(f, f.qvel + world, count, velocity, int(stride));
    slot_products<T>(rows, velocity, rows.rate, nb);
    for (int k = 0; k < rows.count; ++k) rows.aref[k] -= rows.damping[k] * rows.rate[k];
  }
}

}  // namespace
