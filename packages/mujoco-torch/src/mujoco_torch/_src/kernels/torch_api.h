// The few functions of libtorch's C interface that the operators need, without its headers.
//
// Python finds their addresses in the libtorch that is loaded (kernels/__init__.py, the same names in the same order),
// so this library is built once and serves every release of torch that has them.

#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Handle = void*;  // AtenTensorHandle

struct Torch {
  int32_t (*get_data_ptr)(Handle, void**);
  int32_t (*get_dim)(Handle, int64_t*);
  int32_t (*get_sizes)(Handle, int64_t**);
  int32_t (*get_strides)(Handle, int64_t**);
  int32_t (*get_dtype)(Handle, int32_t*);
  int32_t (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
  int32_t (*delete_tensor)(Handle);
  int32_t (*get_num_threads)(uint32_t*);
  int32_t (*parallel_for)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*);
  int64_t float32, float64, int32;  // codes of the element types
};

Torch torch;  // filled by mjt_bind

inline void check(int32_t error) {
  if (error) throw std::runtime_error("mujoco_torch: a call into libtorch failed");
}

// A new contiguous tensor on the CPU.
inline Handle new_tensor(const std::vector<int64_t>& sizes, int64_t dtype) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  Handle out = nullptr;
  check(torch.empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(), int32_t(dtype), 0, -1, &out));
  return out;
}

inline void* data_of(Handle tensor) {
  void* data = nullptr;
  check(torch.get_data_ptr(tensor, &data));
  return data;
}

template <class T>
void copy_strided(const T* source, const int64_t* sizes, const int64_t* strides, int64_t dims, T*& target) {
  if (dims == 0) {
    *target++ = *source;
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i) {
    copy_strided(source + i * strides[0], sizes + 1, strides + 1, dims - 1, target);
  }
}

// An input: owned, as the dispatcher hands it over, and contiguous, copied if it was not. Of one whose `rows` may lie
// anywhere only the last dimension needs to be contiguous.
class Input {
 public:
  explicit Input(uint64_t value, bool rows = false) : handle_(reinterpret_cast<Handle>(value)) {
    int64_t dim = 0, *sizes = nullptr, *steps = nullptr;
    int32_t type = 0;
    check(torch.get_dim(handle_, &dim));
    check(torch.get_sizes(handle_, &sizes));
    check(torch.get_strides(handle_, &steps));
    check(torch.get_dtype(handle_, &type));
    dtype = type;
    shape.assign(sizes, sizes + dim);
    if (rows && dim > 0 && steps[dim - 1] == 1) {
      strides.assign(steps, steps + dim);
      data = data_of(handle_);
      return;
    }
    strides.resize(shape.size());
    int64_t expected = 1;
    bool contiguous = true;
    for (int64_t i = dim; i-- > 0;) {
      contiguous = contiguous && (sizes[i] == 1 || steps[i] == expected);
      strides[i] = expected;
      expected *= sizes[i];
    }
    if (!contiguous && expected) copy(steps);
    data = data_of(handle_);
  }
  Input(const Input&) = delete;
  ~Input() { torch.delete_tensor(handle_); }

  // Raises unless the sizes are these, and the element type that of another input.
  void expect(const char* what, std::initializer_list<int64_t> sizes, const Input& like) const {
    if (shape != std::vector<int64_t>(sizes) || dtype != like.dtype) {
      throw std::runtime_error(std::string("mujoco_torch: ") + what + " has a shape or dtype that does not fit the others");
    }
  }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  int64_t worlds() const { return shape.back(); }

  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t dtype = 0;
  void* data = nullptr;

 private:
  void copy(const int64_t* steps) {
    if (dtype != torch.float64 && dtype != torch.float32) {
      throw std::runtime_error("mujoco_torch: tensors must be float32 or float64");
    }
    const Handle fresh = new_tensor(shape, dtype);
    const int64_t dims = int64_t(shape.size());
    if (dtype == torch.float64) {
      double* target = static_cast<double*>(data_of(fresh));
      copy_strided(static_cast<const double*>(data_of(handle_)), shape.data(), steps, dims, target);
    } else {
      float* target = static_cast<float*>(data_of(fresh));
      copy_strided(static_cast<const float*>(data_of(handle_)), shape.data(), steps, dims, target);
    }
    torch.delete_tensor(handle_);
    handle_ = fresh;
  }
  Handle handle_;
};

// An output tensor; `release` hands it to the dispatcher.
class Output {
 public:
  Output(const std::vector<int64_t>& sizes, int64_t dtype) : handle_(new_tensor(sizes, dtype)) {}
  Output(const Output&) = delete;
  ~Output() {
    if (handle_) torch.delete_tensor(handle_);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_of(handle_));
  }
  uint64_t release() {
    const uint64_t value = reinterpret_cast<uint64_t>(handle_);
    handle_ = nullptr;
    return value;
  }

 private:
  Handle handle_;
};

// Calls body(begin, end) on torch's threads, at least `grain` of the n items each.
template <class Body>
void parallel(int64_t n, int64_t grain, const Body& body) {
  check(torch.parallel_for(
      0, n, grain, [](int64_t begin, int64_t end, void* context) { (*static_cast<const Body*>(context))(begin, end); },
      const_cast<Body*>(&body)));
}

}  // namespace
