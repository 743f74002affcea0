// The no-slip pass of noslip.py for a group of worlds.
//
// Friction has slots of its own, in C's order: first the losses, then the contacts. The k-th of each world that uses
// friction is in the k-th of them, so that a sweep takes the worlds of a group along together, each through its own.
// Slots, or lanes of them, that hold nothing are zero and stay so. Rows of cones are scaled, as in rows.h.

#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "workspace.h"

namespace {

template <class T>
struct NoSlip {
  const System* system;
  Factors<T> factors;
  const T *mass, *qacc_smooth, *qacc;
  T *new_qacc, *qfrc_constraint, *force;
  int32_t* sweeps;
  int64_t worlds;
};

constexpr int kBlock = kMaxAxes - 1;  // rows whose friction is found together, at most

// As in noslip.py.
template <class T>
constexpr T kFlat = T(1e-10);
constexpr int kConeSteps = 20;
template <class T>
constexpr T kRounding = 16 * std::numeric_limits<T>::epsilon();

inline int64_t contact_rows(const System& s, int64_t contact) {
  return s.contact_row[size_t(contact) + 1] - s.contact_row[size_t(contact)];
}

// Rows of a cone's block, of those that slide: one of the sizes there is code for.
inline int cone_size(int64_t rows) { return rows <= 2 ? 2 : rows == 3 ? 3 : kBlock; }

// A constraint of a world: its piece (-1 of a single row), and the first of its slots among all rows.
struct Entry {
  int constraint, piece, slot, lane;
};

// A row of friction: its slot among all rows, and here.
struct Place {
  int row, slot, lane;
};

template <class T>
struct Friction {
  // Of each slot of all rows: J qacc_smooth - aref, and the force.
  Vec<T>*b, *force;
  // Of each dof: D^-1/2 of M = L' D L, and half' force of all rows.
  Vec<T>*root, *joint;
  // Of each slot of friction: its row of half = J L^-1 D^-1/2, so that A = half half', the tile columns of it that may be
  // other than zero, b, force, its row of A among those that are found together (kBlock numbers), and what the diagonal
  // of A is raised to.
  Vec<T>* half;
  uint64_t* blocks;
  Vec<T>*slot_b, *slot_force, *block, *least;
  // Of the first slot of what is found together: the loss or the normal force, and how many rows a cone has.
  Vec<T>*bound, *rank;
  int* sizes;     // slots in use of each contact
  int64_t width;  // slots there are for a contact
  Entry* entries;  // by world, then in C's order
  Place* places;
  int losses, contacts, entry_count, place_count;
};

inline int64_t friction_width(const System& s) { return s.cone ? cone_size(s.axes - 1) : 2 * (s.axes - 1); }

template <class T>
Friction<T> lay_out_friction(Arena& arena, const System& s) {
  Friction<T> f;
  f.width = friction_width(s);
  const size_t padded = size_t(tiles(s.nv)) * kTile, rows = size_t(s.ngiven + s.rows);
  const size_t slots = size_t(s.nf + s.contacts * f.width);
  for (Vec<T>** x : {&f.b, &f.force}) *x = arena.take<Vec<T>>(rows);
  for (Vec<T>** x : {&f.root, &f.joint}) *x = arena.take<Vec<T>>(padded);
  f.half = arena.take<Vec<T>>(slots * padded);
  f.block = arena.take<Vec<T>>(slots * kBlock);
  for (Vec<T>** x : {&f.slot_b, &f.slot_force, &f.least, &f.bound, &f.rank}) *x = arena.take<Vec<T>>(slots);
  f.blocks = arena.take<uint64_t>(slots);
  f.sizes = arena.take<int>(size_t(s.contacts));
  f.entries = arena.take<Entry>(rows * kLanes<T>);
  f.places = arena.take<Place>(slots * kLanes<T>);
  return f;
}

thread_local Buffer friction_buffer;

template <class T>
Friction<T> reserve_friction(const System& s) {
  Arena measure{nullptr};
  lay_out_friction<T>(measure, s);
  Arena arena{friction_buffer.reserve(measure.used)};
  return lay_out_friction<T>(arena, s);
}

// ---- the rows of friction

// Forces of all rows at w.qacc, b, and 1/2 sum f^2 / D: the cost of what the pass no longer regularises.
template <class T, bool general>
Vec<T> start_forces(Work<T>& w, Friction<T>& f, int nb) {
  const Rows<T>& rows = w.rows;
  slot_products<T>(rows, w.smooth, f.b, nb);
  slot_products<T>(rows, w.qacc, f.force, nb);
  for (int k = 0; k < rows.count; ++k) {
    f.b[k] -= rows.aref[k];
    f.force[k] -= rows.aref[k];
  }
  Vec<T> twice = {};
  for (int k = 0; k < rows.plain; ++k) {
    const Vec<T> p = within<T, general>(rows, k, f.force[k]);
    f.force[k] = -rows.weight[k] * p;
    twice += rows.weight[k] * p * p;
  }
  for (int c = 0; general && c < rows.cones; ++c) {
    const Piece& piece = cone_piece<T>(rows, c);
    Vec<T>*force = f.force + piece.slot, p[kMaxAxes];
    project<T>(rows, c, force, p);
    for (int j = 0; j < piece.axes; ++j) force[j] = -rows.cone_weight[c] * p[j];
    twice += rows.cone_weight[c] * dot<T>(p, p, piece.axes);
  }
  return T(0.5) * twice;
}

template <class T>
void open_friction(Friction<T>& f, int slot, int padded) {
  std::memset(f.half + size_t(slot) * padded, 0, size_t(padded) * sizeof(Vec<T>));
  f.slot_b[slot] = f.slot_force[slot] = f.bound[slot] = f.rank[slot] = Vec<T>{};
  f.least[slot] = fill<T>(T(1));
  f.blocks[slot] = 0;
}

// J of the k-th slot of a constraint, to `target`, which is zero.
template <class T>
void place_jac(const Rows<T>& rows, const Entry& entry, int k, Vec<T>* target, int nb) {
  const int lane = entry.lane;
  if (entry.piece < 0) {
    target[rows.dof[entry.slot]][lane] = rows.value[entry.slot][lane];
    return;
  }
  const Piece& piece = rows.piece[entry.piece];
  const size_t stride = size_t(nb) * kTile;
  const Vec<T>*normal = rows.jac + piece.row * stride, *row = normal + (piece.pyramid ? k / 2 + 1 : k) * stride;
  const T along = piece.pyramid ? T(1) : T(0), across = piece.pyramid && k % 2 ? T(-1) : T(1);
  for (int b = 0; b < nb; ++b) {
    if (!has_block(piece.blocks, b)) continue;
    for (int c = b * kTile; c < (b + 1) * kTile; ++c) target[c][lane] = along * normal[c][lane] + across * row[c][lane];
  }
}

// Copies the k-th slot of a constraint to a slot of friction.
template <class T>
void place_row(const System& s, const Rows<T>& rows, Friction<T>& f, const Entry& entry, int k, int slot, T least,
               int nb) {
  const Place place = {entry.slot + k, slot, entry.lane};
  place_jac<T>(rows, entry, k, f.half + size_t(slot) * nb * kTile, nb);
  f.slot_b[place.slot][place.lane] = f.b[place.row][place.lane];
  f.slot_force[place.slot][place.lane] = f.force[place.row][place.lane];
  f.least[place.slot][place.lane] = least;
  f.blocks[place.slot] |= s.reach[entry.constraint];
  f.places[f.place_count++] = place;
}

template <class T>
void place_loss(const NoSlip<T>& p, const Rows<T>& rows, Friction<T>& f, const Entry& entry, int slot, int nb) {
  if (slot == f.losses) open_friction<T>(f, f.losses++, nb * kTile);
  place_row<T>(*p.system, rows, f, entry, 0, slot, kMinVal<T>, nb);
  f.bound[slot][entry.lane] = p.factors.loss[entry.constraint - p.system->ne];
}

template <class T>
void place_contact(const NoSlip<T>& p, const Rows<T>& rows, Friction<T>& f, const Entry& entry, int at, int nb) {
  const System& s = *p.system;
  const int64_t contact = entry.constraint - s.ngiven;
  const int normal = s.cone ? 1 : 0, first = int(s.nf + at * f.width);
  const int count = int(contact_rows(s, contact)) - normal;
  if (at == f.contacts) f.sizes[f.contacts++] = 0;
  for (int& size = f.sizes[at]; size < (s.cone ? cone_size(count) : count); ++size) {
    open_friction<T>(f, first + size, nb * kTile);
  }
  const T* friction = p.factors.friction + contact;
  for (int r = 0; r < count; ++r) {
    const T scale = s.cone ? friction[(r + 1) * s.contacts] : T(1);
    place_row<T>(s, rows, f, entry, normal + r, first + r, kFlat<T> * scale * scale, nb);
  }
  if (!s.cone) return;
  f.bound[first][entry.lane] = friction[0] * f.force[entry.slot][entry.lane];
  f.rank[first][entry.lane] = T(count);
}

// The constraints of each world, in C's order.
template <class T>
void list_entries(const Rows<T>& rows, Friction<T>& f) {
  f.entry_count = 0;
  const auto add = [&](int constraint, int piece, int slot, int lane) {
    if (constraint >= 0) f.entries[f.entry_count++] = {constraint, piece, slot, lane};
  };
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    Entry* first = f.entries + f.entry_count;
    for (int k = 0; k < rows.singles; ++k) add(int(rows.single[k][lane]), -1, k, lane);
    for (int p = 0; p < rows.pieces; ++p) add(rows.owner[p * kLanes<T> + lane], p, rows.piece[p].slot, lane);
    std::sort(first, f.entries + f.entry_count,
              [](const Entry& a, const Entry& b) { return a.constraint < b.constraint; });
  }
}

// The rows of friction in their slots.
template <class T>
void place_friction(const NoSlip<T>& p, const Rows<T>& rows, Friction<T>& f, int nb) {
  const System& s = *p.system;
  list_entries<T>(rows, f);
  f.losses = f.contacts = f.place_count = 0;
  int lane = -1, losses = 0, contacts = 0;
  for (const Entry* e = f.entries; e < f.entries + f.entry_count; ++e) {
    if (e->lane != lane) losses = contacts = 0;
    lane = e->lane;
    const int64_t contact = e->constraint - s.ngiven;
    if (contact >= 0 && contact_rows(s, contact) > 1) {
      place_contact<T>(p, rows, f, *e, contacts++, nb);
    } else if (e->constraint >= s.ne && e->constraint < s.ne + s.nf) {
      place_loss<T>(p, rows, f, *e, losses++, nb);
    }
  }
}

// In place, n vectors x to D^-1/2 L'^-1 x of M = L' D L. They are zero, and stay so, outside some blocks.
template <class T, int n>
void substitute_half(const System& s, const Vec<T>* factor, const Vec<T>* root, uint64_t blocks, Vec<T>* __restrict x,
                     size_t stride) {
  for (int64_t i = s.nv; i-- > 0;) {
    if (!has_block(blocks, int(i / kTile))) continue;
    const int64_t first = s.M_rowadr[i], diagonal = first + s.M_rownnz[i] - 1;
    Vec<T> last[n];
    for (int r = 0; r < n; ++r) last[r] = x[r * stride + i];
    for (int64_t e = first; e < diagonal; ++e) {
      for (int r = 0; r < n; ++r) x[r * stride + s.M_colind[e]] -= factor[e] * last[r];
    }
    for (int r = 0; r < n; ++r) x[r * stride + i] = root[i] * last[r];
  }
}

// ---- what is found together

// Calls visit(number of rows, first slot) for all that is found together, in order: a loss, two opposite edges of a
// pyramid, or what slides of a cone.
template <class T, class Visit>
void for_each_block(const System& s, const Friction<T>& f, const Visit& visit) {
  for (int k = 0; k < f.losses; ++k) visit(std::integral_constant<int, 1>{}, k);
  for (int c = 0; c < f.contacts; ++c) {
    const int first = int(s.nf + c * f.width), size = f.sizes[c];
    if (!s.cone) {
      for (int r = 0; r < size; r += 2) visit(std::integral_constant<int, 2>{}, first + r);
    } else if (size == 2) {
      visit(std::integral_constant<int, 2>{}, first);
    } else if (size == 3) {
      visit(std::integral_constant<int, 3>{}, first);
    } else {
      visit(std::integral_constant<int, kBlock>{}, first);
    }
  }
}

template <class T, int n>
inline uint64_t blocks_of(const Friction<T>& f, int first) {
  uint64_t blocks = 0;
  for (int r = 0; r < n; ++r) blocks |= f.blocks[first + r];
  return blocks;
}

// half x of n slots
template <class T, int n>
inline void half_products(const Friction<T>& f, int first, const Vec<T>* x, Vec<T>* out, int nb) {
  const size_t stride = size_t(nb) * kTile;
  row_products<T, n>(f.half + first * stride, stride, blocks_of<T, n>(f, first), x, out, nb);
}

// The rows of A of n slots, among themselves.
template <class T, int n>
void make_block(const Friction<T>& f, int first, int nb) {
  Vec<T>* block = f.block + size_t(first) * kBlock;
  for (int r = 0; r < n; ++r) {
    Vec<T> row[n];
    half_products<T, n>(f, first, f.half + size_t(first + r) * nb * kTile, row, nb);
    for (int c = 0; c < n; ++c) block[r * kBlock + c] = row[c];
    const Vec<T> least = f.least[first + r], diagonal = row[r];
    block[r * kBlock + r] = diagonal < least ? least : diagonal;
  }
}

template <class T>
Vec<T> clamp(Vec<T> x, Vec<T> bound) {
  x = x > bound ? bound : x;
  return x < -bound ? -bound : x;
}

// Friction loss: the minimum of a parabola in [-loss, loss].
template <class T>
void find_bounded(const Vec<T>* A, const Vec<T>* b, Vec<T> loss, Vec<T>* found) {
  found[0] = clamp<T>(-b[0] / A[0], loss);
}

// Opposite edges of a pyramid: their sum is held, the difference is found.
template <class T>
void find_opposite(const Vec<T>* A, const Vec<T>* b, const Vec<T>* old, Vec<T>* found) {
  const Vec<T> middle = T(0.5) * (old[0] + old[1]), curvature = A[0] + A[kBlock + 1] - A[1] - A[kBlock];
  const Vec<T> slope = middle * (A[0] - A[kBlock + 1]) + b[0] - b[1];
  const Mask<T> flat = curvature < kMinVal<T>;
  const Vec<T> half = flat ? Vec<T>{} : -slope / (flat ? fill<T>(T(1)) : curvature);
  const Vec<T> moved = clamp<T>(half, middle);
  found[0] = middle + moved;
  found[1] = middle - moved;
}

// A + shift = L D L' of small n: L unit lower.
template <class T, int n>
struct SmallFactor {
  Vec<T> lower[n][n], pivot[n];

  void factorize(const Vec<T>* A, Vec<T> shift) {
    for (int i = 0; i < n; ++i) {
      Vec<T> last = A[i * kBlock + i] + shift;
      for (int j = 0; j < i; ++j) {
        Vec<T> rest = A[i * kBlock + j];
        for (int k = 0; k < j; ++k) rest -= lower[i][k] * pivot[k] * lower[j][k];
        lower[i][j] = rest / pivot[j];
        last -= lower[i][j] * rest;
      }
      pivot[i] = floor_at<T>(last, kMinVal<T>);
    }
  }

  void solve(Vec<T>* x) const {
    for (int i = 0; i < n; ++i) {
      for (int k = 0; k < i; ++k) x[i] -= lower[i][k] * x[k];
    }
    for (int i = 0; i < n; ++i) x[i] /= pivot[i];
    for (int i = n; i-- > 0;) {
      for (int k = i + 1; k < n; ++k) x[i] -= lower[k][i] * x[k];
    }
  }

  // By the determinant up to three rows, then by the pivots; those of rows that a world lacks are 1.
  Mask<T> singular(const Vec<T>* A, Vec<T> rank) const {
    Vec<T> product = fill<T>(T(1)), least = pivot[0];
    Mask<T> rounding = {};
    for (int i = 0; i < n; ++i) {
      product *= pivot[i];
      least = pivot[i] < least ? pivot[i] : least;
      rounding |= pivot[i] < kRounding<T> * A[i * kBlock + i];
    }
    return rounding | ((rank <= 3 ? product : least) < kFlat<T>);
  }
};

// Friction of an elliptic cone: the minimum of 1/2 v' A v + b' v with |v| <= normal, in worlds that are going. Its
// multiplier is the root of |v|^2 - normal^2, found by Newton's method from zero on, from one side.
template <class T, int n>
void find_in_cone(const Vec<T>* A, const Vec<T>* b, Vec<T> normal, Vec<T> rank, Mask<T> going, Vec<T>* found) {
  SmallFactor<T, n> factor;
  factor.factorize(A, Vec<T>{});
  const Mask<T> held = (normal >= kMinVal<T>) & ~factor.singular(A, rank);
  const Vec<T> square = normal * normal, one = fill<T>(T(1));
  Vec<T> multiplier = {}, v[n] = {};
  going &= held;
  for (int step = 0; step < kConeSteps && any<T>(going); ++step) {
    if (step) factor.factorize(A, multiplier);
    Vec<T> x[n], bent[n];
    for (int r = 0; r < n; ++r) x[r] = -b[r];
    factor.solve(x);
    std::memcpy(bent, x, sizeof x);
    factor.solve(bent);
    for (int r = 0; r < n; ++r) v[r] = going ? x[r] : v[r];
    const Vec<T> over = dot<T>(x, x, n) - square;
    going &= over >= kFlat<T>;
    const Vec<T> more = over / (going ? T(2) * dot<T>(x, bent, n) : one);
    going &= more >= kFlat<T>;
    multiplier += going ? more : Vec<T>{};
  }
  const Vec<T> length = dot<T>(v, v, n);
  const Mask<T> outside = (multiplier != 0) & (length > 0);
  const Vec<T> reach = outside ? square_root<T>(square / floor_at<T>(outside ? length : one, kMinVal<T>)) : one;
  for (int r = 0; r < n; ++r) found[r] = held ? v[r] * reach : Vec<T>{};
}

// The forces of n slots found again, in worlds that are going and where that lowers the cost; returns its change.
template <class T, int n>
Vec<T> update(const System& s, Friction<T>& f, int first, Mask<T> going, int nb) {
  const Vec<T>* A = f.block + size_t(first) * kBlock;
  Vec<T>* force = f.slot_force + first;
  Vec<T> residual[n], b[n], found[n], step[n];
  half_products<T, n>(f, first, f.joint, residual, nb);
  for (int r = 0; r < n; ++r) {
    residual[r] += f.slot_b[first + r];
    b[r] = residual[r] - dot<T>(A + r * kBlock, force, n);
  }
  if constexpr (n == 1) {
    find_bounded<T>(A, b, f.bound[first], found);
  } else if (s.cone) {
    find_in_cone<T, n>(A, b, f.bound[first], f.rank[first], going, found);
  } else if constexpr (n == 2) {
    find_opposite<T>(A, b, force, found);
  }
  for (int r = 0; r < n; ++r) step[r] = found[r] - force[r];
  Vec<T> change = {};
  for (int r = 0; r < n; ++r) change += step[r] * (T(0.5) * dot<T>(A + r * kBlock, step, n) + residual[r]);
  const Mask<T> keep = n == 1 ? going : going & (change <= kFlat<T>);
  const Vec<T>* half = f.half + size_t(first) * nb * kTile;
  for (int r = 0; r < n; ++r) {
    force[r] = keep ? found[r] : force[r];
    step[r] = keep ? step[r] : Vec<T>{};
    for (int b = 0; b < nb; ++b) {
      if (!has_block(f.blocks[first + r], b)) continue;
      for (int c = b * kTile; c < (b + 1) * kTile; ++c) f.joint[c] += half[r * nb * kTile + c] * step[r];
    }
  }
  return keep ? change : Vec<T>{};
}

// ---- the pass

// half of the slots in use, and their blocks of A.
template <class T>
void make_dual(const System& s, const Work<T>& w, Friction<T>& f, int nb) {
  for_each_block<T>(s, f, [&](auto size, int first) {
    constexpr int n = decltype(size)::value;
    const size_t stride = size_t(nb) * kTile;
    substitute_half<T, n>(s, w.sparse, f.root, blocks_of<T, n>(f, first), f.half + first * stride, stride);
    make_block<T, n>(f, first, nb);
  });
}

// Sweeps until each world has stopped; returns how many.
template <class T>
Mask<T> sweep(const System& s, Friction<T>& f, Mask<T> going, Vec<T> scale, Vec<T> gain, int nb) {
  Mask<T> count = {};
  for (int64_t i = 0; i < s.noslip_iterations && any<T>(going); ++i) {
    for_each_block<T>(s, f, [&](auto size, int first) {
      gain -= update<T, decltype(size)::value>(s, f, first, going, nb);
    });
    count -= going;
    going &= ~(scale * gain < T(s.noslip_tolerance));
    gain = Vec<T>{};
  }
  return count;
}

// Joint forces J' f of all rows.
template <class T>
void joint_forces(const Rows<T>& rows, const Vec<T>* force, Vec<T>* x, int nb) {
  for (int i = 0; i < nb * kTile; ++i) x[i] = Vec<T>{};
  for (int k = 0; k < rows.singles; ++k) x[rows.dof[k]] += rows.value[k] * force[k];
  int active = 0;
  for (int p = 0; p < rows.pieces; ++p) {
    if (set_pull<T>(rows, p, force + rows.piece[p].slot)) rows.active[active++] = p;
  }
  add_pulls<T>(rows, active, x, nb);
}

// The forces of a group into theirs of all rows, which are zero.
template <class T>
void store_forces(const NoSlip<T>& p, const Friction<T>& f, int64_t world) {
  const System& s = *p.system;
  for (int e = 0; e < f.entry_count; ++e) {
    const Entry& entry = f.entries[e];
    const int64_t contact = entry.constraint - s.ngiven;
    const int64_t first = contact < 0 ? entry.constraint : s.ngiven + s.contact_row[contact];
    const int64_t count = contact < 0 ? 1 : contact_rows(s, contact);
    const bool cone = s.kind(entry.constraint) == Kind::cone;
    for (int64_t r = 0; r < count; ++r) {
      const T scale = cone ? p.factors.friction[r * s.contacts + contact] : T(1);
      p.force[(first + r) * p.worlds + world + entry.lane] = scale * f.force[entry.slot + r][entry.lane];
    }
  }
}

// The factor of M of a group to the workspace; returns 1 / trace(M).
template <class T>
Vec<T> factor_inertia(const NoSlip<T>& p, Work<T>& w, Friction<T>& f, int64_t world, int count) {
  const System& s = *p.system;
  load_vector<T>(p.mass + world, s.nC(), p.worlds, count, w.sparse, int(s.nC()));
  Vec<T> trace = {};
  for (int64_t i = 0; i < s.nv; ++i) trace += w.sparse[s.M_rowadr[i] + s.M_rownnz[i] - 1];
  factorize_sparse<T>(s, w.sparse, w.inverse);
  for (int64_t i = 0; i < s.nv; ++i) f.root[i] = square_root<T>(w.inverse[i]);
  return T(1) / floor_at<T>(trace, kMinVal<T>);
}

// The forces of all rows of a group after the pass, to f.force; returns its sweeps.
template <class T, bool general>
Mask<T> find_forces(const NoSlip<T>& p, Work<T>& w, Friction<T>& f, Vec<T> scale, int nb) {
  const System& s = *p.system;
  const Vec<T> gain = start_forces<T, general>(w, f, nb);
  place_friction<T>(p, w.rows, f, nb);
  make_dual<T>(s, w, f, nb);
  joint_forces<T>(w.rows, f.force, f.joint, nb);
  substitute_half<T, 1>(s, w.sparse, f.root, ~uint64_t(0), f.joint, 0);
  const Mask<T> sweeps = sweep<T>(s, f, w.rows.constrained, scale, gain, nb);
  for (int i = 0; i < f.place_count; ++i) {
    const Place& place = f.places[i];
    f.force[place.row][place.lane] = f.slot_force[place.slot][place.lane];
  }
  return sweeps;
}

// The pass of a group whose rows are in the workspace.
template <class T, bool general>
void noslip_group(const NoSlip<T>& p, Work<T>& w, Friction<T>& f, int64_t world, int count) {
  const System& s = *p.system;
  const int nb = tiles(s.nv), padded = nb * kTile;
  Mask<T> sweeps = {};
  load_vector<T>(p.qacc_smooth + world, s.nv, p.worlds, count, w.smooth, padded);
  load_vector<T>(p.qacc + world, s.nv, p.worlds, count, w.qacc, padded);
  if (w.rows.count) {
    const Vec<T> scale = factor_inertia<T>(p, w, f, world, count);
    sweeps = find_forces<T, general>(p, w, f, scale, nb);
    store_forces<T>(p, f, world);
  }
  joint_forces<T>(w.rows, f.force, w.force, nb);
  store_vector<T>(p.qfrc_constraint + world, w.force, s.nv, p.worlds, count);
  if (w.rows.count) substitute_sparse<T>(s, w.sparse, w.inverse, w.force);
  for (int64_t i = 0; i < s.nv; ++i) w.qacc[i] = w.smooth[i] + w.force[i];
  store_vector<T>(p.new_qacc + world, w.qacc, s.nv, p.worlds, count);
  for (int lane = 0; lane < count; ++lane) p.sweeps[world + lane] = int32_t(sweeps[lane]);
}

template <class T, bool general>
void noslip_turn(const NoSlip<T>& p, Work<T>* works, const Turn& turn) {
  const System& s = *p.system;
  const size_t worlds = size_t((turn.groups - 1) * kLanes<T> + turn.last);
  Rows<T>* rows[kTurn];
  for (int g = 0; g < turn.groups; ++g) rows[g] = &works[g].rows;
  pack_factored<T>(p.factors, turn, rows, works[0].cdof, works[0].search);
  for (int64_t i = 0; i < s.ngiven + s.rows; ++i) std::memset(p.force + i * p.worlds + turn.world, 0, worlds * sizeof(T));
  Friction<T> friction = reserve_friction<T>(s);
  for (int g = 0; g < turn.groups; ++g) {
    noslip_group<T, general>(p, works[g], friction, turn.world + g * kLanes<T>, count_of<T>(turn, g));
  }
}

}  // namespace
