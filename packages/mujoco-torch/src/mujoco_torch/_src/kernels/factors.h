// Constraint rows made where they are in use: from the values of given rows, and from contact frames and motion axes.
//
// Worlds seldom use the same rows (humanoid lying about: 12 of 196 a world, 63 in some of eight worlds), so each world
// fills the slots of its group with its own, 22 there. The solve took a sixth longer with one row in a slot.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "rows.h"
#include "structure.h"

namespace {

// What rows are made of, with the world last; D is zero in a constraint that is not active.
template <class T>
struct Factors {
  const System* system;
  const T *cdof, *com, *pos, *frame, *edge, *given, *given_weight, *given_reference, *contact_weight,
      *contact_reference, *scale, *friction, *damping, *loss, *qvel;
  int64_t worlds, reference_axes;
  bool fixed_given;  // the given rows have no worlds

  const T* weight(int64_t constraint) const {
    const int64_t contact = constraint - system->ngiven;
    return contact < 0 ? given_weight + constraint * worlds : contact_weight + contact * worlds;
  }
  const T* reference(int64_t constraint) const {
    const int64_t contact = constraint - system->ngiven;
    return contact < 0 ? given_reference + constraint * worlds : contact_reference + contact * worlds;
  }
};

constexpr size_t kAhead = 8;   // constraints whose weights are asked for in advance

// J of a given row of the world `world`, into its lane of a slot.
template <class T>
void pack_given(const Factors<T>& f, int64_t row, int64_t world, int lane, Vec<T>* slot) {
  const System& s = *f.system;
  for (int64_t e = s.given_start[row]; e < s.given_start[row + 1]; ++e) {
    slot[s.given_dof[e]][lane] = f.given[f.fixed_given ? e : e * f.worlds + world];
  }
}

// Scratch for the contacts of a group: the motion axes of each world (6 x stride, dofs side by side, so that a contact's
// rows are made for many dofs at once), and those rows (kMaxAxes x stride).
template <class T>
struct Arms {
  T *cdof, *power;
  int64_t stride;
};

// J of all rows of a contact, into the lane's slots from the one at `slot` on. A row is the normal, plus or minus friction
// times one more axis; of a cone, an axis times its friction.
template <class T>
void pack_contact(const Factors<T>& f, int64_t contact, int64_t world, int lane, const Arms<T>& arms, Vec<T>* slot,
                  size_t step) {
  const System& s = *f.system;
  const int64_t stride = arms.stride;
  const T* __restrict cdof = arms.cdof + lane * 6 * stride;
  T pos[3], frame[9], edge[2 * kMaxAxes];
  for (int k = 0; k < 3; ++k) pos[k] = f.pos[(k * s.contacts + contact) * f.worlds + world];
  for (int k = 0; k < 9; ++k) frame[k] = f.frame[(k * s.contacts + contact) * f.worlds + world];
  const int64_t first = s.contact_row[contact], count = s.contact_row[contact + 1] - first;
  const int64_t* axis = s.row_axis.data() + first;
  for (int64_t r = 0; r < count; ++r) edge[r] = axis[r] ? f.edge[axis[r] * s.rows + first + r] : T(0);
  const bool cone = s.is_cone(s.ngiven + contact);
  const int axes = int(count == 1 || cone ? count : count / 2 + 1);
  for (int64_t side = s.side_start[contact]; side < s.side_start[contact + 1]; ++side) {
    T arm[3];
    for (int k = 0; k < 3; ++k) arm[k] = pos[k] - f.com[(k * s.nbody + s.side_root[side]) * f.worlds + world];
    for (int a = 0; a < axes; ++a) {
      const T* along = frame + 3 * (a % 3);
      T w[6] = {along[0], along[1], along[2], 0, 0, 0};  // a torque
      if (a < 3) {                                       // a force
        w[0] = arm[1] * along[2] - arm[2] * along[1];
        w[1] = arm[2] * along[0] - arm[0] * along[2];
        w[2] = arm[0] * along[1] - arm[1] * along[0];
        for (int k = 0; k < 3; ++k) w[3 + k] = along[k];
      }
      T* __restrict power = arms.power + a * stride;
      for (int64_t j = 0; j < stride; ++j) {
        const T rotation = w[0] * cdof[j] + w[1] * cdof[stride + j] + w[2] * cdof[2 * stride + j];
        power[j] = rotation + w[3] * cdof[3 * stride + j] + w[4] * cdof[4 * stride + j] + w[5] * cdof[5 * stride + j];
      }
    }
    for (int64_t e = s.column_start[side]; e < s.column_start[side + 1]; ++e) {
      const Column column = s.columns[size_t(e)];
      const T* power = arms.power + column.dof;
      if (cone) {
        for (int64_t r = 0; r < count; ++r) {
          const T friction = f.friction[r * s.contacts + contact];
          slot[size_t(r) * step + size_t(column.dof)][lane] += column.sign * friction * power[r * stride];
        }
        continue;
      }
      for (int64_t r = 0; r < count; ++r) {
        slot[size_t(r) * step + size_t(column.dof)][lane] += column.sign * (power[0] + edge[r] * power[axis[r] * stride]);
      }
    }
  }
}

// The motion axes of each world of a group, dofs side by side.
template <class T>
void pack_cdof(const Factors<T>& f, int64_t world, int count, const Arms<T>& arms) {
  const int64_t nv = f.system->nv;
  for (int k = 0; k < 6; ++k) {
    for (int64_t j = 0; j < nv; ++j) {
      const T* source = f.cdof + (k * nv + j) * f.worlds + world;
      for (int lane = 0; lane < count; ++lane) arms.cdof[(lane * 6 + k) * arms.stride + j] = source[lane];
    }
  }
}

// The reference of a contact's row: along its edge.
template <class T>
inline T row_reference(const Factors<T>& f, int64_t contact, int64_t row, int64_t world) {
  const System& s = *f.system;
  T sum = f.edge[row] * f.contact_reference[contact * f.worlds + world];
  for (int64_t k = 1; k < f.reference_axes; ++k) {
    sum += f.edge[k * s.rows + row] * f.contact_reference[(k * s.contacts + contact) * f.worlds + world];
  }
  return sum;
}

// The bounds of a row's residual, as System::general() needs them.
template <class T>
inline void set_bounds(Rows<T>& rows, const Factors<T>& f, int64_t constraint, int lane, T weight, int slot) {
  const System& s = *f.system;
  const T infinite = std::numeric_limits<T>::infinity();
  const bool equality = constraint < s.ne, friction = !equality && constraint < s.ne + s.nf;
  const T bound = friction ? f.loss[constraint - s.ne] / weight : infinite;
  rows.low[slot][lane] = -bound;
  rows.high[slot][lane] = equality || friction ? bound : T(0);
}

template <class T>
inline void open_slot(Rows<T>& rows, int slot) {
  rows.blocks[slot] = 0;
  rows.weight[slot] = rows.aref[slot] = rows.damping[slot] = Vec<T>{};
  rows.low[slot] = rows.high[slot] = Vec<T>{};
  ++rows.count;
}

// Gives a constraint of a world its slots: a given row, or all rows of a contact.
template <class T>
inline void add_entry(Rows<T>& rows, const Factors<T>& f, int64_t constraint, int lane, T weight) {
  const System& s = *f.system;
  const int64_t contact = constraint - s.ngiven;
  const int64_t first = contact < 0 ? constraint : s.ngiven + s.contact_row[contact];
  const int64_t count = contact < 0 ? 1 : s.contact_row[contact + 1] - s.contact_row[contact];
  const uint64_t blocks = s.blocks[size_t(constraint)];
  rows.entries[rows.entry_count++] = {int(constraint), rows.filled[lane], lane};
  rows.constrained[lane] = -1;
  for (int64_t r = 0; r < count; ++r) {
    const int slot = rows.filled[lane]++;
    if (slot == rows.count) open_slot<T>(rows, slot);
    rows.blocks[slot] |= blocks;
    rows.weight[slot][lane] = contact < 0 ? weight : weight * f.scale[s.contact_row[contact] + r];
    rows.damping[slot][lane] = f.damping[first + r];
    if (s.general()) set_bounds<T>(rows, f, constraint, lane, weight, slot);
  }
}

// The slots of a cone: the same ones in all worlds that have so many cones.
template <class T>
inline void add_cone(Rows<T>& rows, const Factors<T>& f, int64_t constraint, int lane, T weight) {
  const System& s = *f.system;
  const int64_t contact = constraint - s.ngiven, first = s.contact_row[contact];
  const int64_t count = s.contact_row[contact + 1] - first;
  const int slot = rows.filled[lane], cone = (slot - rows.plain) / rows.axes;
  rows.entries[rows.entry_count++] = {int(constraint), slot, lane};
  rows.constrained[lane] = -1;
  rows.filled[lane] += rows.axes;
  if (slot == rows.count) {
    for (int r = 0; r < rows.axes; ++r) open_slot<T>(rows, slot + r);
    rows.cone_weight[cone] = rows.cone_mu[cone] = Vec<T>{};
  }
  const T mu = f.friction[contact];
  rows.cone_mu[cone][lane] = mu;
  rows.cone_weight[cone][lane] = weight / (mu * mu);
  for (int r = 0; r < rows.axes; ++r) rows.blocks[slot + r] |= s.blocks[size_t(constraint)];
  for (int64_t r = 0; r < count; ++r) rows.damping[slot + r][lane] = f.damping[s.ngiven + first + r];
}

// All worlds go on with the same slot, a new one.
template <class T>
inline void align_worlds(Rows<T>& rows) {
  for (int& filled : rows.filled) filled = rows.count;
}

// Before the cones.
template <class T>
inline void start_cones(Rows<T>& rows) {
  rows.plain = rows.count;
  align_worlds<T>(rows);
}

// Lists the constraints with weight of each group of a turn, and asks for what makes them.
template <class T>
void list_rows(const Factors<T>& f, const Turn& turn, Rows<T>* const* groups) {
  const System& s = *f.system;
  const size_t total = s.order.size();
  for (int g = 0; g < turn.groups; ++g) {
    clear<T>(*groups[g]);
    groups[g]->axes = int(s.axes);
  }
  const size_t plain = total - size_t(s.cones);
  for (size_t o = 0; o < total; ++o) {
    if (o == plain) {
      for (int g = 0; g < turn.groups; ++g) start_cones<T>(*groups[g]);
    }
    if (s.fresh[o]) {
      for (int g = 0; g < turn.groups; ++g) align_worlds<T>(*groups[g]);
    }
    const int64_t i = s.order[o], ahead = o + kAhead < total ? s.order[o + kAhead] : i;
    for (int g = 0; g < turn.groups; ++g) {
      const int64_t world = turn.world + g * kLanes<T>;
      const int count = count_of<T>(turn, g);
      prefetch(f.weight(ahead) + world);
      const Vec<T> w = load<T>(f.weight(i) + world, count);
      if (!any<T>(w != 0)) continue;
      for (int lane = 0; lane < count; ++lane) {
        if (w[lane] == 0) continue;
        if (o < plain) {
          add_entry<T>(*groups[g], f, i, lane, w[lane]);
        } else {
          add_cone<T>(*groups[g], f, i, lane, w[lane]);
        }
      }
      prefetch(f.reference(i) + world);
      if (i < s.ngiven) continue;
      groups[g]->contacts = true;
      for (int64_t k = 0; k < 3; ++k) prefetch(f.pos + (k * s.contacts + i - s.ngiven) * f.worlds + world);
      for (int64_t k = 0; k < 9; ++k) prefetch(f.frame + (k * s.contacts + i - s.ngiven) * f.worlds + world);
    }
  }
  if (s.cones) return;
  for (int g = 0; g < turn.groups; ++g) groups[g]->plain = groups[g]->count;
}

// The rows of each group of a turn that are active, with their reference at the velocity: aref = ref - damping J qvel.
// `velocity` is scratch, one number a dof.
template <class T>
void pack_factored(const Factors<T>& f, const Turn& turn, Rows<T>* const* groups, const Arms<T>& arms,
                   Vec<T>* velocity) {
  const System& s = *f.system;
  const int nb = tiles(s.nv);
  const size_t stride = size_t(nb) * kTile;
  list_rows<T>(f, turn, groups);
  for (int g = 0; g < turn.groups; ++g) {
    Rows<T>& rows = *groups[g];
    if (rows.contacts) pack_cdof<T>(f, turn.world + g * kLanes<T>, count_of<T>(turn, g), arms);
    for (int k = 0; k < rows.count; ++k) {
      Vec<T>* slot = rows.jac + k * stride;
      for (int c = 0; c < nb * kTile; ++c) {
        if (has_block(rows.blocks[k], c / kTile)) slot[c] = Vec<T>{};
      }
    }
    for (int e = 0; e < rows.entry_count; ++e) {
      const Entry entry = rows.entries[e];
      const int64_t world = turn.world + g * kLanes<T> + entry.lane, contact = entry.constraint - s.ngiven;
      Vec<T>* slot = rows.jac + entry.slot * stride;
      if (contact < 0) {
        rows.aref[entry.slot][entry.lane] = f.reference(entry.constraint)[world];
        pack_given<T>(f, entry.constraint, world, entry.lane, slot);
        continue;
      }
      const bool cone = s.is_cone(entry.constraint);
      for (int64_t r = 0; r < s.contact_row[contact + 1] - s.contact_row[contact]; ++r) {
        const T reference = row_reference<T>(f, contact, s.contact_row[contact] + r, world);
        const T friction = cone ? f.friction[r * s.contacts + contact] : T(1);
        rows.aref[entry.slot + r][entry.lane] = friction * reference;
      }
      pack_contact<T>(f, contact, world, entry.lane, arms, slot, stride);
    }
    if (!rows.count) continue;
    const int64_t world = turn.world + g * kLanes<T>;
    load_vector<T>(f.qvel + world, s.nv, f.worlds, count_of<T>(turn, g), velocity, nb * kTile);
    row_products<T>(rows, velocity, rows.rate, nb);
    for (int k = 0; k < rows.count; ++k) rows.aref[k] -= rows.damping[k] * rows.rate[k];
  }
}

}  // namespace
