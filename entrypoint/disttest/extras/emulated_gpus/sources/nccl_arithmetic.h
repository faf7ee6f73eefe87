// The arithmetic of NCCL's reductions on NCCL's types. 16-bit floats are added as 32-bit ones and rounded each time.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

struct BFloat16 {
  uint16_t bits;
  BFloat16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    bits = std::isnan(value) ? 0x7fc0 : uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);  // to the nearest, even
  }
  operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
};

template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<BFloat16> {
  using type = float;
};
template <>
struct Wide<_Float16> {
  using type = float;
};

// Call `function` with a null pointer of the type's C++ type; false: it has none here (8-bit floats).
template <class Function>
bool with_type(ncclDataType_t type, Function function) {
  switch (type) {
    case ncclInt8: function((int8_t*)nullptr); return true;
    case ncclUint8: function((uint8_t*)nullptr); return true;
    case ncclInt32: function((int32_t*)nullptr); return true;
    case ncclUint32: function((uint32_t*)nullptr); return true;
    case ncclInt64: function((int64_t*)nullptr); return true;
    case ncclUint64: function((uint64_t*)nullptr); return true;
    case ncclFloat16: function((_Float16*)nullptr); return true;
    case ncclFloat32: function((float*)nullptr); return true;
    case ncclFloat64: function((double*)nullptr); return true;
    case ncclBfloat16: function((BFloat16*)nullptr); return true;
    default: return false;
  }
}

inline size_t size_of(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < ncclNumTypes ? sizes[type] : 0;
}

template <class T>
T combine(T left, T right, ncclRedOp_t operation) {
  switch (operation) {
    case ncclProd: return left * right;
    case ncclMax: return left > right ? left : right;
    case ncclMin: return left < right ? left : right;
    default: return left + right;  // sums, and averages, which are divided in the end
  }
}

// into[i] = into[i] OPERATION from[i]
inline bool reduce(char* into, const char* from, size_t count, ncclDataType_t type, ncclRedOp_t operation) {
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using W = typename Wide<T>::type;
    T* left = reinterpret_cast<T*>(into);
    const T* right = reinterpret_cast<const T*>(from);
    for (size_t i = 0; i < count; i++) left[i] = T(combine<W>(W(left[i]), W(right[i]), operation));
  });
}

// values[i] *= factor
inline bool scale(char* values, size_t count, ncclDataType_t type, double factor) {
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* all = reinterpret_cast<T*>(values);
    for (size_t i = 0; i < count; i++) {
      if constexpr (std::is_integral_v<T>) all[i] = T((long double)all[i] * factor);
      else all[i] = T(typename Wide<T>::type(all[i]) * typename Wide<T>::type(factor));
    }
  });
}

inline double read_number(const void* at, ncclDataType_t type) {
  double value = 1;
  with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    value = double(typename Wide<T>::type(*static_cast<const T*>(at)));
  });
  return value;
}

}  // namespace emulated
