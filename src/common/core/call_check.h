// The one check of a call, for every native function and both devices.
//
// Python's ops have checked all of it, with messages for users. Here it is checked again, because
// anyone can make a call, and because a recorded call runs with the memory of another one: whatever
// a size or an index is taken from is compared with the memory that is there. A wrong call throws
// std::invalid_argument, a ValueError in Python, before anything is written. Nothing is allocated
// where all is right.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "common/core/call.h"

namespace fastact {

inline int compute_type_of(int dtype) { return dtype == kF64 ? kF64 : kF32; }

// The dtype that a rule asks for beside another array's; of those that it allows, one.
inline int expected_dtype(DTypeRule rule, int other) {
  switch (rule) {
    case DTypeRule::kComputeType:
      return compute_type_of(other);
    case DTypeRule::kMask:
      return kBool;
    case DTypeRule::kIndex:
      return kI64;
    case DTypeRule::kUnrounded:
      return item_size(other) == 2 ? kF64 : other;
    case DTypeRule::kAny:
    case DTypeRule::kDouble:
      return kF64;
    case DTypeRule::kSame:
    case DTypeRule::kWideEnough:
    case DTypeRule::kComputed:
      break;
  }
  return other;
}

inline bool fits_dtype(DTypeRule rule, int dtype, int other) {
  const bool is_computed = dtype >= 0 && dtype < kDTypes;
  if (rule == DTypeRule::kIndex) return dtype == kI32 || dtype == kI64;
  if (rule == DTypeRule::kComputed) return is_computed;
  if (rule == DTypeRule::kAny) return dtype >= 0 && dtype < kViewDTypes;
  if (rule == DTypeRule::kWideEnough && is_computed)
    return dtype == other || other == kF64 || item_size(dtype) > item_size(other);
  return dtype == expected_dtype(rule, other);
}

inline std::string dtype_text(int dtype) {
  return dtype >= 0 && dtype < kViewDTypes ? kDTypeNames[dtype] : "one that is not computed";
}

inline std::string shape_text(const Operand& a) {
  std::string text = "(";
  for (int i = 0; i < a.ndim; ++i) text += (i ? ", " : "") + std::to_string(a.shape[i]);
  return text + (a.ndim == 1 ? ",)" : ")");
}

// The fields that a field of a table names; null: none.
struct NamedFields {
  const Field *shape_of, *axes, *dtype_of, *written_if;
};

inline const Field* field_by_name(const CallTable& table, const char* name) {
  if (!name) return nullptr;
  for (int k = 0; k < table.count; ++k)
    if (!strcmp(table.fields[k].name, name)) return &table.fields[k];
  throw std::logic_error(std::string("fastact: a table names no field ") + name);
}

// Finds them for all fields, once: a check of a call compares no names.
inline void find_named_fields(const CallTable& table, NamedFields* to) {
  for (int k = 0; k < table.count; ++k) {
    const Field& f = table.fields[k];
    to[k] = {field_by_name(table, f.shape_of), field_by_name(table, f.axes),
             field_by_name(table, f.dtype_of), field_by_name(table, f.written_if)};
  }
}

// Whether a call writes an array.
inline bool is_written(const Field& f, const NamedFields& named, void* call) {
  return f.role != Role::kIn ||
         (named.written_if && *static_cast<const bool*>(named.written_if->at(call)));
}

// A call that is being checked; `where` begins its messages.
class CallCheck {
 public:
  // named: what `find_named_fields` finds.
  CallCheck(const char* module, const CallTable& table, const NamedFields* named, void* call)
      : module_(module), table_(table), named_(named), call_(call) {}

  // Gives arrays that are not there the dtype that they would have.
  void run() {
    for (int k = 0; k < table_.count; ++k) check_field(table_.fields[k]);
    if (!table_.problem) return;
    if (const char* problem = table_.problem(call_)) refuse(problem);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::invalid_argument(std::string(module_) + ": " + table_.name + ": " + what);
  }
  [[noreturn]] void refuse(const Field& f, const std::string& what) const {
    refuse(std::string(f.name) + " " + what);
  }

  const NamedFields& named(const Field& f) const { return named_[&f - table_.fields]; }
  const ArrayArgument& shape_of(const Field& f) const { return *array(*named(f).shape_of); }
  const ArrayArgument& dtype_of(const Field& f) const { return *array(*named(f).dtype_of); }
  template <class T>
  const T& axes(const Field& f) const {
    return *static_cast<const T*>(named(f).axes->at(call_));
  }
  ArrayArgument* array(const Field& f) const { return static_cast<ArrayArgument*>(f.at(call_)); }

  void check_field(const Field& f) {
    if (f.kind == FieldKind::kArray) return check_array(f, array(f));
    if (f.kind == FieldKind::kAxes) return check_axes(f);
    if (f.kind == FieldKind::kPlaces) return check_places(f, *static_cast<Places*>(f.at(call_)));
    if (f.kind == FieldKind::kInteger) check_integer(f, *static_cast<const int*>(f.at(call_)));
  }

  void check_index(const Field& f, int value, int64_t end) const {
    if (value < 0 || value >= end)
      refuse(f, "must be from 0 to " + std::to_string(end - 1) + ", got " + std::to_string(value));
  }

  void check_integer(const Field& f, int value) const {
    if (f.shape_of && f.is_optional && value == 0) return;
    check_index(f, value, f.shape_of ? shape_of(f).ndim : f.end);
  }

  void check_axes(const Field& f) const {
    const bool* flags = *static_cast<const AxisFlags*>(f.at(call_));
    for (int i = shape_of(f).ndim; i < kMaxAxes; ++i)
      if (flags[i]) check_index(f, i, shape_of(f).ndim);
  }

  int parts_of(const Field& f) const { return f.times[axes<int>(f)]; }

  void check_places(const Field& f, const Places& places) const {
    if (places.count != parts_of(f))
      refuse(f, "must be " + std::to_string(parts_of(f)) + ", got " + std::to_string(places.count));
    for (int k = 0; k < places.count; ++k) check_index(f, places.at[k], places.count);
  }

  void check_array(const Field& f, ArrayArgument* a) {
    if (!a->shape) {
      if (!f.is_optional) refuse(f, "must be an array, got none");
      a->dtype = expected_dtype(f);
      return;
    }
    if (!lead_) lead_ = a;
    if (!has_dtype(f, a->dtype))
      refuse(f, "must have dtype " + dtypes_text(f) + ", got " + dtype_text(a->dtype));
    if (a->device_type != lead_->device_type || a->device != lead_->device)
      refuse(f, "must be on the device of the other arrays");
    if (is_written(f, named(f), call_) && a->is_readonly) refuse(f, "must be writable");
    if (!a->data && !is_empty(*a))
      refuse(f, "must have memory, got a model of shape " + shape_text(*a));
    if (!has_shape(f, *a)) refuse(f, "must have " + shapes_text(f) + ", got " + shape_text(*a));
  }

  // The dtype of the array beside which a field's dtype is judged.
  int dtype_beside(const Field& f) const {
    return f.dtype_of ? dtype_of(f).dtype : lead_ ? lead_->dtype : kF64;
  }
  int expected_dtype(const Field& f) const {
    return fastact::expected_dtype(f.dtype, dtype_beside(f));
  }
  bool has_dtype(const Field& f, int dtype) const {
    return fits_dtype(f.dtype, dtype, dtype_beside(f));
  }

  std::string dtypes_text(const Field& f) const {
    if (f.dtype == DTypeRule::kIndex) return "int32 or int64";
    if (f.dtype == DTypeRule::kComputed) return "float16, bfloat16, float32 or float64";
    if (f.dtype == DTypeRule::kAny) return "a number's or bool";
    const char* more = f.dtype == DTypeRule::kWideEnough ? " or a wider one" : "";
    return dtype_text(expected_dtype(f)) + more;
  }

  bool has_shape(const Field& f, const Operand& a) const {
    if (f.shape == ShapeRule::kAny) return true;
    if (f.shape == ShapeRule::kOne)
      return std::all_of(a.shape, a.shape + a.ndim, [](int64_t n) { return n == 1; });
    const Operand& other = shape_of(f);
    if (f.shape == ShapeRule::kAlong || f.shape == ShapeRule::kChannels)
      return has_channels(f, a, other);
    if (f.shape == ShapeRule::kAlongPacked)
      return other.ndim > 0 && a.ndim == 1 && a.shape[0] == packed_length(f, other);
    if (f.shape == ShapeRule::kPacked) return has_packed(f, a, other);
    const AxisFlags* axes = f.axes ? &this->axes<AxisFlags>(f) : nullptr;
    const bool is_grouped = f.shape == ShapeRule::kGrouped;
    bool fits = a.ndim == other.ndim + is_grouped;
    for (int i = 0; fits && i < other.ndim; ++i) {
      const bool is_one = axes && (*axes)[i] == (f.shape != ShapeRule::kKept);
      const bool may_be_one = f.shape == ShapeRule::kBeside && a.shape[i] == 1;
      fits = may_be_one || a.shape[i] == (is_one ? 1 : other.shape[i]);
    }
    return fits;
  }

  bool has_channels(const Field& f, const Operand& a, const Operand& other) const {
    const int axis = axes<int>(f);
    if (axis >= other.ndim) return false;
    if (a.ndim == 1) return a.shape[0] == other.shape[axis];
    bool fits = a.ndim == other.ndim && f.shape == ShapeRule::kChannels;
    for (int i = 0; fits && i < a.ndim; ++i) fits = a.shape[i] == (i == axis ? other.shape[i] : 1);
    return fits;
  }

  int64_t packed_length(const Field& f, const Operand& other) const {
    return parts_of(f) * other.shape[other.ndim - 1];
  }
  bool has_packed(const Field& f, const Operand& a, const Operand& other) const {
    const int last = other.ndim - 1;
    return last >= 0 && a.ndim == other.ndim && std::equal(a.shape, a.shape + last, other.shape) &&
           a.shape[last] == packed_length(f, other);
  }

  std::string shapes_text(const Field& f) const {
    if (f.shape == ShapeRule::kOne) return "one element";
    const std::string of = std::string(f.shape_of) + "'s, " + shape_text(shape_of(f));
    switch (f.shape) {
      case ShapeRule::kBeside:
        return "a shape that broadcasts to " + of + ", with as many axes";
      case ShapeRule::kReduced:
        return "the shape " + of + " with length 1 along the axes " + f.axes;
      case ShapeRule::kGrouped:
        return "the shape " + of + " with length 1 along the axes " + f.axes + ", and groups";
      case ShapeRule::kKept:
        return "the shape " + of + " with length 1 along all but the axes " + f.axes;
      case ShapeRule::kAlong:
        return "one axis, as long as an axis of the shape " + of;
      case ShapeRule::kChannels:
        return std::string("an element for each index of ") + f.axes + " in the shape " + of;
      case ShapeRule::kPacked:
      case ShapeRule::kAlongPacked:
        return (f.shape == ShapeRule::kPacked ? "the shape " : "one axis, the last one of ") + of +
               " with its last axis " + std::to_string(parts_of(f)) + " times as long";
      default:
        return "the shape " + of;
    }
  }

  const char* const module_;
  const CallTable& table_;
  const NamedFields* const named_;
  void* const call_;
  const ArrayArgument* lead_ = nullptr;
};

inline void check_call(const char* module, const CallTable& table, const NamedFields* named,
                       void* call) {
  CallCheck(module, table, named, call).run();
}

// needed, alignment: bytes.
inline void check_workspace(const char* module, const char* function, const void* workspace,
                            int64_t there, int64_t needed, int alignment) {
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument(std::string(module) + ": " + function + ": workspace must " + what);
  };
  if (there < needed)
    refuse("have " + std::to_string(needed) + " bytes, got " + std::to_string(there));
  if (needed > 0 && reinterpret_cast<uintptr_t>(workspace) % uintptr_t(alignment) != 0)
    refuse("be aligned to " + std::to_string(alignment) + " bytes");
}

}  // namespace fastact
