// The arrays and numbers of a call of a native function, and their description.
//
// A family's call.h has a struct for the arrays and numbers of a call and, for each native
// function, a table of its fields: where it lies in the struct, its name, and what it may be. The
// plans and kernels of both devices take the struct. All else reads the table: the binding fills
// the struct from values by name (cpu/binding/native_call.pyx), `check` (call_check.h) compares
// them with each other, and tests ask for it (`_cpu.native_calls`). How to add one:
// docs/design/native_calls.md.
#pragma once

#include <type_traits>

#include "common/core/operand.h"

namespace fastact {

// An array of a call. One that is not there has neither shape nor data, and the dtype that it would
// have.
struct ArrayArgument : Operand {
  int dtype;
  int device_type, device;  // DLPack's pair
  bool is_readonly;
};

// Whether two arrays of one shape, or of none, step alike.
inline bool same_strides(const ArrayArgument& a, const ArrayArgument& b) {
  for (int i = 0; i < a.ndim && b.shape; ++i)
    if (a.shape[i] != 1 &&
        byte_stride(a, i, item_size(a.dtype)) != byte_stride(b, i, item_size(b.dtype)))
      return false;
  return true;
}

// Some of an array's axes: a flag for each.
struct AxisFlags {
  bool flags[kMaxAxes];
  operator const bool*() const { return flags; }
};

constexpr int kMaxParameters = 4;

// An op's parameters in the order of its signature, then 0.
struct ParameterValues {
  double value[kMaxParameters];
  operator const double*() const { return value; }
};

constexpr int kMostPlaces = 4;

// The places of the parts of packed arrays, in the kernels' order; after them, the number itself.
struct Places {
  int count;
  int at[kMostPlaces];
};

enum class FieldKind : int {
  kArray,
  kAxes,
  kParameters,
  kNumber,
  kInteger,
  kInt64,  // an integer of any value
  kBits,   // 64 of them
  kPlaces,
  kFlag,
  kText
};

enum class Role : int { kIn, kOut, kInOut };

enum class ShapeRule : int {
  kAny,
  kLike,      // the other array's
  kBeside,    // as many axes, each of the other's length or of length 1
  kReduced,   // the same, of length 1 along the axes that a field names and along no other one
  kKept,      // of length 1 along all axes but those that a field names
  kGrouped,   // as kReduced, and one axis more, of any length but 0
  kAlong,     // one axis, as long as the axis that a field numbers
  kChannels,  // the same, or as many axes as the other array, each other one of length 1
  kPacked,    // the other's, its last axis so many times as long as `times` has at a field's number
  kAlongPacked,  // one axis, as long as that one
  kOne,          // of one element
};

enum class DTypeRule : int {
  kComputed,     // any in which arrays are computed
  kAny,          // any that a View has
  kDouble,       // float64
  kSame,         // the other array's
  kComputeType,  // in which the other array is computed
  kWideEnough,   // the other array's, or a wider one; beside float64 any, for it holds all
  kUnrounded,    // the other array's, but float64 beside 16-bit data
  kMask,         // bool
  kIndex,        // int32 or int64
};

// One member of a call. Other fields are meant by name; they come before it in its table.
struct Field {
  const char* name;
  void* (*at)(void* call);
  FieldKind kind;
  Role role = Role::kIn;
  bool is_optional = false;  // one that is not given: no array, no text, or 0

  ShapeRule shape = ShapeRule::kAny;
  const char* shape_of = nullptr;  // the other array; of axes or one of them, whose they are
  const char* axes = nullptr;
  const int* times =
      nullptr;  // of packed arrays and of places: how many parts they have, by number
  DTypeRule dtype = DTypeRule::kComputed;
  const char* dtype_of = nullptr;
  int64_t end = 0;  // an integer is less, and not negative
  // A flag: where it is set, an array that is read is written, too.
  const char* written_if = nullptr;

  constexpr Field optional() const {
    Field f = *this;
    f.is_optional = true;
    return f;
  }
  constexpr Field written_where(const char* flag) const {
    Field f = *this;
    f.written_if = flag;
    return f;
  }
  constexpr Field with_shape(ShapeRule rule, const char* of, const char* by = nullptr) const {
    Field f = *this;
    f.shape = rule, f.shape_of = of, f.axes = by;
    return f;
  }
  constexpr Field with_dtype(DTypeRule rule, const char* of = nullptr) const {
    Field f = *this;
    f.dtype = rule, f.dtype_of = of;
    return f;
  }
  constexpr Field like(const char* of) const {
    return with_shape(ShapeRule::kLike, of).same_dtype(of);
  }
  constexpr Field same_shape(const char* of) const { return with_shape(ShapeRule::kLike, of); }
  constexpr Field beside(const char* of) const { return with_shape(ShapeRule::kBeside, of); }
  constexpr Field reduced(const char* of, const char* by) const {
    return with_shape(ShapeRule::kReduced, of, by);
  }
  constexpr Field kept(const char* of, const char* by) const {
    return with_shape(ShapeRule::kKept, of, by);
  }
  constexpr Field grouped(const char* of, const char* by) const {
    return with_shape(ShapeRule::kGrouped, of, by);
  }
  constexpr Field along(const char* of, const char* by) const {
    return with_shape(ShapeRule::kAlong, of, by);
  }
  constexpr Field channels(const char* of, const char* by) const {
    return with_shape(ShapeRule::kChannels, of, by);
  }
  // by: the field that numbers `times`.
  constexpr Field with_times(ShapeRule rule, const char* of, const char* by,
                             const int* parts) const {
    Field f = with_shape(rule, of, by);
    f.times = parts;
    return f;
  }
  constexpr Field packed(const char* of, const char* by, const int* parts) const {
    return with_times(ShapeRule::kPacked, of, by, parts).same_dtype(of);
  }
  constexpr Field along_packed(const char* of, const char* by, const int* parts) const {
    return with_times(ShapeRule::kAlongPacked, of, by, parts);
  }
  constexpr Field one() const { return with_shape(ShapeRule::kOne, nullptr); }
  constexpr Field same_dtype(const char* of) const { return with_dtype(DTypeRule::kSame, of); }
  constexpr Field compute_type(const char* of) const {
    return with_dtype(DTypeRule::kComputeType, of);
  }
  constexpr Field wide_enough(const char* of) const {
    return with_dtype(DTypeRule::kWideEnough, of);
  }
  constexpr Field unrounded(const char* of) const { return with_dtype(DTypeRule::kUnrounded, of); }
  constexpr Field any_dtype() const { return with_dtype(DTypeRule::kAny); }
  constexpr Field float64() const { return with_dtype(DTypeRule::kDouble); }
  constexpr Field mask() const { return with_dtype(DTypeRule::kMask); }
  constexpr Field index() const { return with_dtype(DTypeRule::kIndex); }
  constexpr Field below(int64_t value) const {
    Field f = *this;
    f.end = value;
    return f;
  }
};

// The kinds of members, by their types.
constexpr FieldKind kind_of(const ArrayArgument*) { return FieldKind::kArray; }
constexpr FieldKind kind_of(const AxisFlags*) { return FieldKind::kAxes; }
constexpr FieldKind kind_of(const ParameterValues*) { return FieldKind::kParameters; }
constexpr FieldKind kind_of(const double*) { return FieldKind::kNumber; }
constexpr FieldKind kind_of(const int*) { return FieldKind::kInteger; }
constexpr FieldKind kind_of(const int64_t*) { return FieldKind::kInt64; }
constexpr FieldKind kind_of(const uint64_t*) { return FieldKind::kBits; }
constexpr FieldKind kind_of(const Places*) { return FieldKind::kPlaces; }
constexpr FieldKind kind_of(const bool*) { return FieldKind::kFlag; }
constexpr FieldKind kind_of(const char* const*) { return FieldKind::kText; }

// The place of a member, and its kind. element: of a member that is several arrays.
template <auto member, int element, class Pointer = decltype(member)>
struct MemberOf;
template <auto member, int element, class Call, class Member>
struct MemberOf<member, element, Member Call::*> {
  static constexpr FieldKind kind = kind_of(static_cast<std::remove_extent_t<Member>*>(nullptr));

  static void* at(void* call) {
    Member& found = static_cast<Call*>(call)->*member;
    if constexpr (std::is_array_v<Member>)
      return &found[element];
    else
      return &found;
  }
};

// The fields of a table: an array that is read, written, or both; anything else.
namespace fields {

template <auto member, int element = 0>
constexpr Field in(const char* name) {
  return {name, MemberOf<member, element>::at, MemberOf<member, element>::kind};
}
template <auto member, int element = 0>
constexpr Field out(const char* name) {
  Field f = in<member, element>(name);
  f.role = Role::kOut;
  return f;
}
template <auto member, int element = 0>
constexpr Field in_out(const char* name) {
  Field f = in<member, element>(name);
  f.role = Role::kInOut;
  return f;
}
// Flags for the axes of an array.
template <auto member>
constexpr Field axes(const char* name, const char* of) {
  return in<member>(name).with_shape(ShapeRule::kAny, of);
}
// The number of one of them; of an optional one, 0 where there is none.
template <auto member>
constexpr Field axis(const char* name, const char* of) {
  return in<member>(name).with_shape(ShapeRule::kAny, of).below(kMaxAxes);
}
// Places, as many as there are parts, by a field's number.
template <auto member>
constexpr Field places(const char* name, const char* by, const int* parts) {
  return in<member>(name).with_times(ShapeRule::kAny, nullptr, by, parts);
}

}  // namespace fields

// A native function. Its first array leads: the call is for that device and dtype.
struct CallTable {
  const char* name;
  const Field* fields;
  int count;
  int64_t size;  // bytes of the struct
  // Tells why a call is refused where the table can't: a text, or null. May be null itself.
  const char* (*problem)(const void* call);
};

template <class Call, int count>
constexpr CallTable table_of_call(const char* name, const Field (&fields)[count],
                                  const char* (*problem)(const void*) = nullptr) {
  static_assert(std::is_trivially_copyable_v<Call>, "recorded calls copy it");
  return {name, fields, count, int64_t(sizeof(Call)), problem};
}

}  // namespace fastact
