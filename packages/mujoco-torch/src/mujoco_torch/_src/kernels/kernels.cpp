// The operators' CPU kernels, one world per SIMD lane.
//
// Tensors have the world as their last dimension, of stride 1. A group is as many worlds as a register holds. Its data
// is copied to a compact workspace, where every number is a register wide ("Vec"), so the code reads as if for one
// world; masks keep the worlds of a group apart where their paths differ. A few neighbouring groups are copied at once
// (a "turn"), since their numbers share memory pages. The algorithms are those of solver/newton.py and solver/mass.py.
//
// This is one translation unit; its parts are, in this order, torch_api.h, simd.h, matrix.h, structure.h, combine.h,
// mass.h, rows.h, factors.h, penalty.h, line_search.h, newton.h, workspace.h, elimination.h, noslip.h, spatial.h,
// poses.h and com.h. An operator takes the dispatcher's stack of arguments, each a handle or an integer, and leaves its
// results there. Plain C interface at the end of this file.

#include "com.h"
#include "combine.h"
#include "elimination.h"
#include "noslip.h"
#include "poses.h"
#include "workspace.h"

namespace {

template <class T>
struct Element {
  using type = T;
};

// Calls body with the element type of a tensor: float or double.
template <class Body>
void with_type(const Input& x, const Body& body) {
  if (x.dtype == torch.float64) {
    body(Element<double>{});
  } else if (x.dtype == torch.float32) {
    body(Element<float>{});
  } else {
    throw std::runtime_error("mujoco_torch: tensors must be float32 or float64");
  }
}

// combine(x, pattern) -> Tensor
void combine_op(uint64_t* stack) {
  const Input x(stack[0], true);
  const Pattern& p = patterns.find(int64_t(stack[1]));
  std::vector<int64_t> sizes = x.shape;
  const size_t items = sizes.size() - 2;
  if (x.shape.size() < 2 || x.shape[items] != p.columns) throw std::runtime_error("mujoco_torch: combine: wrong shape");
  int64_t lead = 1;
  for (size_t i = 0; i < items; ++i) lead *= x.shape[i];
  sizes[items] = p.rows;
  Output out(sizes, x.dtype);
  with_type(x, [&](auto type) {
    using T = typename decltype(type)::type;
    combine<T>(p, x, out.as<T>(), lead);
  });
  stack[0] = out.release();
}

// poses(resting, motion, slots, local, parent, joint, joint_parent, carrier) -> (Tensor, Tensor, Tensor)
void poses_op(uint64_t* stack) {
  const Input resting(stack[0], true), motion(stack[1], true), slots(stack[2]), local(stack[3]);
  const Pattern &parent = patterns.find(int64_t(stack[4])), &joint = patterns.find(int64_t(stack[5]));
  const Pattern& carrier = patterns.find(int64_t(stack[7]));
  const int64_t worlds = motion.worlds(), n = parent.rows;
  resting.expect("resting", {7, n, resting.worlds() == 1 ? 1 : worlds}, motion);
  motion.expect("motion", {7, joint.columns, worlds}, motion);
  slots.expect("slots", {7, joint.columns, 1}, motion);
  local.expect("local", {7, carrier.rows, 1}, motion);
  Output body({7, n, worlds}, motion.dtype), axes({6, joint.rows, worlds}, motion.dtype);
  Output attached({12, carrier.rows, worlds}, motion.dtype);
  with_type(motion, [&](auto type) {
    using T = typename decltype(type)::type;
    const Poses<T> poses{&parent, &joint, &carrier, Items<T>(resting), Items<T>(motion), Items<T>(slots),
                         Items<T>(local), {body.as<T>(), n, worlds}, {axes.as<T>(), joint.rows, worlds},
                         {attached.as<T>(), carrier.rows, worlds}};
    const std::vector<int64_t> joint_of = poses.joints();
    for_groups<T>(worlds, [&](int64_t world, int count) { poses.run(joint_of, world, count); });
  });
  stack[0] = body.release();
  stack[1] = axes.release();
  stack[2] = attached.release();
}

// com(quat, ipos, imat, joints, bodies, dofs, subtree, root, dof_joint, dof_turning, dof_root)
//   -> (Tensor, Tensor, Tensor)
void com_op(uint64_t* stack) {
  const Input quat(stack[0], true), ipos(stack[1], true), imat(stack[2], true), joints(stack[3], true);
  const Input bodies(stack[4]), dofs(stack[5]);
  const Pattern* p[5];
  for (int i = 0; i < 5; ++i) p[i] = &patterns.find(int64_t(stack[6 + i]));
  const int64_t worlds = ipos.worlds(), n = p[0]->rows, nv = p[2]->rows;
  quat.expect("xquat", {4, n, worlds}, ipos);
  ipos.expect("xipos", {3, n, worlds}, ipos);
  imat.expect("ximat", {9, n, worlds}, ipos);
  joints.expect("the joints", {6, p[2]->columns, worlds}, ipos);
  bodies.expect("the bodies", {6, n, 1}, ipos);
  dofs.expect("the dofs", {8, nv, 1}, ipos);
  Output com({3, n, worlds}, ipos.dtype), cinert({10, n, worlds}, ipos.dtype), cdof({6, nv, worlds}, ipos.dtype);
  with_type(ipos, [&](auto type) {
    using T = typename decltype(type)::type;
    const Com<T> all{p[0], p[1], p[2], p[3], p[4], Items<T>(quat), Items<T>(ipos), Items<T>(imat), Items<T>(joints),
                     Items<T>(bodies), Items<T>(dofs), {com.as<T>(), n, worlds}, {cinert.as<T>(), n, worlds},
                     {cdof.as<T>(), nv, worlds}};
    for_groups<T>(worlds, [&](int64_t world, int count) { all.run(world, count); });
  });
  stack[0] = com.release();
  stack[1] = cinert.release();
  stack[2] = cdof.release();
}

// mass_matrix(crb, cdof, armature, system) -> Tensor
void mass_matrix_op(uint64_t* stack) {
  const Input crb(stack[0]), cdof(stack[1]), armature(stack[2]);
  const System& s = systems.find(int64_t(stack[3]));
  const int64_t worlds = cdof.worlds();
  crb.expect("crb", {10, s.nbody, worlds}, cdof);
  cdof.expect("cdof", {6, s.nv, worlds}, cdof);
  armature.expect("armature", {s.nv, 1}, cdof);
  Output mass({s.nC(), worlds}, cdof.dtype);
  with_type(cdof, [&](auto type) {
    using T = typename decltype(type)::type;
    const T *c = crb.as<T>(), *v = cdof.as<T>(), *a = armature.as<T>();
    T* out = mass.as<T>();
    for_turns<T>(Sizes{s.nv}, worlds, [&](Work<T>* works, const Turn& turn) {
      for (int g = 0; g < turn.groups; ++g) {
        const int64_t world = turn.world + g * kLanes<T>;
        mass_matrix<T>(s, c, v, a, out, worlds, world, count_of<T>(turn, g), works[g].cdof);
      }
    });
  });
  stack[0] = mass.release();
}

// factor_m(M, system) -> (Tensor, Tensor)
void factor_m_op(uint64_t* stack) {
  const Input mass(stack[0]);
  const System& s = systems.find(int64_t(stack[1]));
  const int64_t worlds = mass.worlds(), nC = s.nC();
  mass.expect("M", {nC, worlds}, mass);
  Output factor({nC, worlds}, mass.dtype), inverse({s.nv, worlds}, mass.dtype);
  with_type(mass, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* m = mass.as<T>();
    T *l = factor.as<T>(), *d = inverse.as<T>();
    for_turns<T>(Sizes{s.nv, nC}, worlds, [&](Work<T>* works, const Turn& turn) {
      for (int g = 0; g < turn.groups; ++g) {
        Work<T>& w = works[g];
        const int64_t world = turn.world + g * kLanes<T>;
        const int count = count_of<T>(turn, g);
        load_vector<T>(m + world, nC, worlds, count, w.sparse, int(nC));
        factorize_sparse<T>(s, w.sparse, w.inverse);
        store_vector<T>(l + world, w.sparse, nC, worlds, count);
        store_vector<T>(d + world, w.inverse, s.nv, worlds, count);
      }
    });
  });
  stack[0] = factor.release();
  stack[1] = inverse.release();
}

// solve_m(qLD, qLDiagInv, b, system) -> Tensor
void solve_m_op(uint64_t* stack) {
  const Input factor(stack[0]), inverse(stack[1]), b(stack[2]);
  const System& s = systems.find(int64_t(stack[3]));
  const int64_t worlds = b.worlds(), nC = s.nC();
  factor.expect("qLD", {nC, worlds}, b);
  inverse.expect("qLDiagInv", {s.nv, worlds}, b);
  b.expect("b", {s.nv, worlds}, b);
  Output out({s.nv, worlds}, b.dtype);
  with_type(b, [&](auto type) {
    using T = typename decltype(type)::type;
    const T *l = factor.as<T>(), *d = inverse.as<T>(), *right = b.as<T>();
    T* x = out.as<T>();
    for_turns<T>(Sizes{s.nv, nC}, worlds, [&](Work<T>* works, const Turn& turn) {
      for (int g = 0; g < turn.groups; ++g) {
        Work<T>& w = works[g];
        const int64_t world = turn.world + g * kLanes<T>;
        const int count = count_of<T>(turn, g);
        load_vector<T>(l + world, nC, worlds, count, w.sparse, int(nC));
        load_vector<T>(d + world, s.nv, worlds, count, w.inverse, int(s.nv));
        load_vector<T>(right + world, s.nv, worlds, count, w.search, int(s.nv));
        substitute_sparse<T>(s, w.sparse, w.inverse, w.search);
        store_vector<T>(x + world, w.search, s.nv, worlds, count);
      }
    });
  });
  stack[0] = out.release();
}

// hessian_solve(M, J, w, b) -> Tensor, of dense M (nv, nv, B) and J (nefc, nv, B)
void hessian_solve_op(uint64_t* stack) {
  const Input mass(stack[0]), jac(stack[1]), weight(stack[2]), b(stack[3]);
  const int64_t nv = b.shape[0], nefc = jac.shape[0], worlds = b.worlds();
  mass.expect("M", {nv, nv, worlds}, b);
  jac.expect("J", {nefc, nv, worlds}, b);
  weight.expect("w", {nefc, worlds}, b);
  b.expect("b", {nv, worlds}, b);
  Output out({nv, worlds}, b.dtype);
  with_type(b, [&](auto type) {
    using T = typename decltype(type)::type;
    const T *m = mass.as<T>(), *j = jac.as<T>(), *weights = weight.as<T>(), *right = b.as<T>();
    T* x = out.as<T>();
    for_turns<T>(Sizes{nv, 0, nefc, nefc, nefc}, worlds, [&](Work<T>* works, const Turn& turn) {
      const int nb = tiles(nv);
      Vec<T>* masses[kTurn];
      Rows<T>* rows[kTurn];
      for (int g = 0; g < turn.groups; ++g) {
        masses[g] = works[g].sum;
        rows[g] = &works[g].rows;
      }
      pack_symmetric<T>(m, nv, worlds, turn, masses);
      pack_dense<T>(j, weights, nv, nefc, worlds, turn, rows);
      for (int g = 0; g < turn.groups; ++g) {
        Work<T>& w = works[g];
        const int64_t world = turn.world + g * kLanes<T>;
        const int count = count_of<T>(turn, g);
        find_dense_shape<T>(w.sum, *rows[g], w.shape, nb);
        const int active = list_changes<T>(w.rows, w.rows.weight, w.sum);
        factorize<T>(w, active, active, nb);
        load_vector<T>(right + world, nv, worlds, count, w.search, nb * kTile);
        substitute<T>(w.hessian, w.inverse, w.search, w.shape, nb);
        store_vector<T>(x + world, w.search, nv, worlds, count);
      }
    });
  });
  stack[0] = out.release();
}

thread_local Buffer elimination_buffer;

// solve_dense(A, b) -> Tensor, of dense A (n, n, B)
void solve_dense_op(uint64_t* stack) {
  const Input matrix(stack[0]), b(stack[1]);
  const int64_t n = b.shape[0], worlds = b.worlds();
  matrix.expect("A", {n, n, worlds}, b);
  b.expect("b", {n, worlds}, b);
  Output out({n, worlds}, b.dtype);
  with_type(b, [&](auto type) {
    using T = typename decltype(type)::type;
    const T *m = matrix.as<T>(), *right = b.as<T>();
    T* result = out.as<T>();
    const int64_t groups = (worlds + kLanes<T> - 1) / kLanes<T>;
    std::atomic<bool> failed{false};
    parallel(groups, 8, [&](int64_t begin, int64_t end) {
      char* memory = nullptr;
      try {
        memory = elimination_buffer.reserve(size_t(n * n + 2 * n) * sizeof(Vec<T>));
      } catch (const std::bad_alloc&) {
        failed = true;
        return;
      }
      Arena arena{memory};
      Vec<T>*a = arena.take<Vec<T>>(size_t(n * n)), *x = arena.take<Vec<T>>(size_t(n));
      int64_t* columns = arena.take<int64_t>(size_t(n));
      for (int64_t g = begin; g < end; ++g) {
        const int64_t world = g * kLanes<T>, left = worlds - world;
        const int count = int(left < kLanes<T> ? left : kLanes<T>);
        load_vector<T>(m + world, n * n, worlds, count, a, int(n * n));
        load_vector<T>(right + world, n, worlds, count, x, int(n));
        eliminate<T>(a, x, columns, n);
        store_vector<T>(result + world, x, n, worlds, count);
      }
    });
    if (failed) throw std::runtime_error("mujoco_torch: no memory for the elimination");
  });
  stack[0] = out.release();
}

// The first arguments of `solve` and `noslip`: M, and what rows are made of.
struct RowInputs {
  static constexpr int kCount = 16;
  Input mass, cdof, com, pos, frame, edge, given, given_D, given_ref, contact_D, contact_ref, scale, friction, damping,
      loss, qvel;

  explicit RowInputs(const uint64_t* stack)
      : mass(stack[0]), cdof(stack[1]), com(stack[2]), pos(stack[3]), frame(stack[4]), edge(stack[5]), given(stack[6]),
        given_D(stack[7]), given_ref(stack[8]), contact_D(stack[9]), contact_ref(stack[10]), scale(stack[11]),
        friction(stack[12]), damping(stack[13]), loss(stack[14]), qvel(stack[15]) {}

  int64_t worlds() const { return mass.worlds(); }

  // Also of the vectors of the joint space that come after them.
  void expect(const System& s, std::initializer_list<const Input*> vectors) const {
    const int64_t reference_axes = contact_ref.shape[0];
    mass.expect("M", {s.nC(), worlds()}, mass);
    cdof.expect("cdof", {6, s.nv, worlds()}, mass);
    com.expect("subtree_com", {3, s.nbody, worlds()}, mass);
    pos.expect("contact_pos", {3, s.contacts, worlds()}, mass);
    frame.expect("contact_frame", {9, s.contacts, worlds()}, mass);
    edge.expect("row_edge", {s.axes, s.rows, 1}, mass);
    given.expect("given_jac", {s.nJ, given.worlds() == 1 ? 1 : worlds()}, mass);
    given_D.expect("given_D", {s.ngiven, worlds()}, mass);
    given_ref.expect("given_ref", {s.ngiven, worlds()}, mass);
    contact_D.expect("contact_D", {s.contacts, worlds()}, mass);
    contact_ref.expect("contact_ref", {reference_axes == 1 ? 1 : s.axes, s.contacts, worlds()}, mass);
    scale.expect("row_scale", {s.rows, 1}, mass);
    friction.expect("cone_friction", {s.cone ? s.axes : 0, s.contacts, 1}, mass);
    damping.expect("damping", {s.ngiven + s.rows, 1}, mass);
    loss.expect("frictionloss", {s.nf, 1}, mass);
    qvel.expect("qvel", {s.nv, worlds()}, mass);
    for (const Input* x : vectors) x->expect("a vector of the joint space", {s.nv, worlds()}, mass);
  }

  template <class T>
  Factors<T> factors(const System& s) const {
    return {&s, &s, &s.all, cdof.as<T>(), com.as<T>(), pos.as<T>(), frame.as<T>(), edge.as<T>(), given.as<T>(), given_D.as<T>(),
            given_ref.as<T>(), contact_D.as<T>(), contact_ref.as<T>(), scale.as<T>(), friction.as<T>(), damping.as<T>(),
            loss.as<T>(), qvel.as<T>(), worlds(), contact_ref.shape[0], given.worlds() == 1};
  }
};

// solve(M, cdof, subtree_com, contact_pos, contact_frame, row_edge, given_jac, given_D, given_ref, contact_D,
//       contact_ref, row_scale, cone_friction, damping, frictionloss, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart,
//       system) -> (Tensor, Tensor, Tensor)
void solve_op(uint64_t* stack) {
  const RowInputs in(stack);
  const uint64_t* more = stack + RowInputs::kCount;
  const Input force(more[0]), smooth(more[1]), warmstart(more[2]);
  const System& s = systems.find(int64_t(more[3]));
  const int64_t worlds = in.worlds(), dtype = in.mass.dtype;
  in.expect(s, {&force, &smooth, &warmstart});
  Output qacc({s.nv, worlds}, dtype), qfrc({s.nv, worlds}, dtype), niter({worlds}, torch.int32);
  with_type(in.mass, [&](auto type) {
    using T = typename decltype(type)::type;
    const Problem<T> problem{in.factors<T>(s), in.mass.as<T>(), force.as<T>(), smooth.as<T>(), warmstart.as<T>(),
                             qacc.as<T>(), qfrc.as<T>(), niter.as<int32_t>()};
    std::fill_n(niter.as<int32_t>(), worlds, 0);
    const auto body = [&](Work<T>* works, const Turn& turn) {
      for (const Part& part : s.parts) {
        if (part.system->general()) {
          solve_turn<T, true>(problem.of(part), works, turn);
        } else {
          solve_turn<T, false>(problem.of(part), works, turn);
        }
      }
    };
    for_turns<T>(sizes_of_parts(s), worlds, body);
  });
  stack[0] = qacc.release();
  stack[1] = qfrc.release();
  stack[2] = niter.release();
}

// noslip(M to qvel as of solve, qacc_smooth, qacc, system) -> (Tensor, Tensor, Tensor, Tensor)
void noslip_op(uint64_t* stack) {
  const RowInputs in(stack);
  const uint64_t* more = stack + RowInputs::kCount;
  const Input smooth(more[0]), qacc(more[1]);
  const System& s = systems.find(int64_t(more[2]));
  const int64_t worlds = in.worlds(), dtype = in.mass.dtype;
  in.expect(s, {&smooth, &qacc});
  Output out({s.nv, worlds}, dtype), qfrc({s.nv, worlds}, dtype), force({s.ngiven + s.rows, worlds}, dtype),
      sweeps({worlds}, torch.int32);
  with_type(in.mass, [&](auto type) {
    using T = typename decltype(type)::type;
    const NoSlip<T> pass{&s, in.factors<T>(s), in.mass.as<T>(), smooth.as<T>(), qacc.as<T>(),
                         out.as<T>(), qfrc.as<T>(), force.as<T>(), sweeps.as<int32_t>(), worlds};
    const auto body = [&](Work<T>* works, const Turn& turn) {
      if (s.general()) {
        noslip_turn<T, true>(pass, works, turn);
      } else {
        noslip_turn<T, false>(pass, works, turn);
      }
    };
    for_turns<T>(sizes_of(s), worlds, body);
  });
  stack[0] = out.release();
  stack[1] = qfrc.release();
  stack[2] = force.release();
  stack[3] = sweeps.release();
}

}  // namespace

extern "C" {

void mjt_bind(const Torch* functions) { torch = *functions; }

void mjt_pattern(int64_t key, const PatternSpec* spec) { patterns.add(key, std::make_unique<Pattern>(*spec)); }

void mjt_system(int64_t key, const SystemSpec* spec) {
  systems.add(key, std::make_unique<System>(*spec));
}

#define MJT_OPERATOR(name) \
  void mjt_##name(uint64_t* stack, uint64_t, uint64_t) { name##_op(stack); }

MJT_OPERATOR(combine)
MJT_OPERATOR(poses)
MJT_OPERATOR(com)
MJT_OPERATOR(mass_matrix)
MJT_OPERATOR(factor_m)
MJT_OPERATOR(solve_m)
MJT_OPERATOR(hessian_solve)
MJT_OPERATOR(solve_dense)
MJT_OPERATOR(solve)
MJT_OPERATOR(noslip)

}  // extern "C"
