// Centres of mass of subtrees, inertias and motion axes about them.

#pragma once

#include "spatial.h"
#include "structure.h"

namespace {

template <class T>
struct Com {
  const Pattern *subtree, *root, *dof_joint, *dof_turning, *dof_root;
  Items<T> quat, ipos, imat, joints, bodies, dofs;
  Results<T> com, cinert, cdof;

  Vector<T> com_of(int64_t body, int64_t world, int count) const {
    const T* place = com.data + body * com.worlds + world;
    const int64_t step = com.n * com.worlds;
    return {load<T>(place, count), load<T>(place + step, count), load<T>(place + 2 * step, count)};
  }

  // Rows of `bodies`: mass, 1 / mass of the subtree, whether that has none, the principal inertias.
  void centre(int64_t b, int64_t world, int count) const {
    Vector<T> sum{};
    for (int64_t e = subtree->start[size_t(b)]; e < subtree->start[size_t(b) + 1]; ++e) {
      const int64_t below = subtree->column[size_t(e)];
      sum = sum + scaled<T>(bodies.at(0, below, world, count), ipos.vector(below, world, count));
    }
    const Vec<T> scale = bodies.at(1, b, world, count), massless = bodies.at(2, b, world, count);
    com.vector(b, world, count, scaled<T>(scale, sum) + scaled<T>(massless, ipos.vector(b, world, count)));
  }

  void inertia(int64_t b, int64_t world, int count) const {
    const Vector<T> offset = ipos.vector(b, world, count) - com_of(root->column[size_t(b)], world, count);
    const Vec<T> mass = bodies.at(0, b, world, count);
    const Vector<T> diagonal = bodies.vector(b, world, count, 3);
    Vector<T> row[3], turned[3];
    for (int k = 0; k < 3; ++k) {
      row[k] = imat.vector(b, world, count, 3 * k);
      turned[k] = {diagonal.x * row[k].x, diagonal.y * row[k].y, diagonal.z * row[k].z};
    }
    const Vec<T> x = offset.x, y = offset.y, z = offset.z;
    cinert.vector(b, world, count,
                  {dot<T>(turned[0], row[0]) + mass * (y * y + z * z), dot<T>(turned[1], row[1]) + mass * (x * x + z * z),
                   dot<T>(turned[2], row[2]) + mass * (x * x + y * y)});
    cinert.vector(b, world, count,
                  {dot<T>(turned[0], row[1]) - mass * x * y, dot<T>(turned[0], row[2]) - mass * x * z,
                   dot<T>(turned[1], row[2]) - mass * y * z},
                  3);
    cinert.vector(b, world, count, scaled<T>(mass, offset), 6);
    cinert.put(9, b, world, count, mass);
  }

  // Rows of `dofs`: whether it is a slide or hinge, whether it translates, its constant axis, its axis in the body.
  void axis(int64_t i, int64_t world, int count) const {
    const int64_t joint = dof_joint->column[size_t(i)], turning = dof_turning->start[size_t(i)];
    Vector<T> axis = dofs.vector(i, world, count, 5);
    if (turning < dof_turning->start[size_t(i) + 1]) {
      const int64_t body = dof_turning->column[size_t(turning)];
      axis = rotate<T>({quat.at(0, body, world, count), quat.vector(body, world, count, 1)}, axis);
    }
    axis = axis + dofs.vector(i, world, count, 2) +
           scaled<T>(dofs.at(0, i, world, count), joints.vector(joint, world, count, 3));
    const Vec<T> linear = dofs.at(1, i, world, count);
    const Vector<T> angular = scaled<T>(T(1) - linear, axis);
    const Vector<T> offset = com_of(dof_root->column[size_t(i)], world, count) - joints.vector(joint, world, count);
    cdof.vector(i, world, count, angular);
    cdof.vector(i, world, count, scaled<T>(linear, axis) + cross<T>(angular, offset), 3);
  }

  void run(int64_t world, int count) const {
    for (int64_t b = 0; b < com.n; ++b) centre(b, world, count);
    for (int64_t b = 0; b < com.n; ++b) inertia(b, world, count);
    for (int64_t i = 0; i < cdof.n; ++i) axis(i, world, count);
  }
};

}  // namespace
