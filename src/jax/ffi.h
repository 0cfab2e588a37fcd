// The structures that XLA's foreign function interface hands to a handler, as far as they are read.
//
// No header of jaxlib's is needed to build, and one build serves every jaxlib: a handler states the
// version that it was written for, and newer ones go on serving older handlers, in whose structures
// they only append fields. This is version 0.1, which jaxlib has had since 0.4.38 at least; the
// facts are of jaxlib's xla/ffi/api/c_api.h. Every structure begins with its size and a list of
// extensions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace fastact::xla {

constexpr int kMajor = 0, kMinor = 1;

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int major_version;  // OUT
  int minor_version;  // OUT
};

struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

// A frame with this extension asks for the handler's version, and is no call.
struct MetadataExtension {
  static constexpr int kType = 1;
  Extension base;
  Metadata* metadata;
};

struct Error;  // XLA's own; NULL is success

struct ErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int code;
};
constexpr int kInvalidArgument = 3;

struct StreamArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;
  void* stream;  // OUT: of CUDA a cudaStream_t
};

struct AllocateArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;
  size_t size;
  size_t alignment;
  void* data;  // OUT
};

struct FreeArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;
  size_t size;
  void* data;
};

// The functions that XLA offers a handler. An error that they return belongs to the handler, which
// may return it in turn.
struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  void (*of_errors_and_handlers[3])();  // not called
  Error* (*get_stream)(StreamArguments*);
  void (*of_types_and_state[4])();  // not called
  Error* (*allocate)(AllocateArguments*);
  Error* (*free)(FreeArguments*);
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int dtype;  // a number of xla::PrimitiveType
  void* data;
  int64_t rank;
  int64_t* shape;  // (rank,); the elements lie in C order
};

struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t count;
  int* kinds;        // (count,): kBuffer
  Buffer** buffers;  // (count,)
};
constexpr int kBuffer = 1;

struct Text {
  const char* data;
  size_t size;
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t count;
  int* kinds;     // (count,)
  Text** names;   // (count,), sorted
  void** values;  // (count,): of kText, a Text
};
constexpr int kText = 4;

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers inputs;
  Buffers outputs;
  Attributes attributes;
};
constexpr int kExecute = 3;

using Handler = Error* (*)(CallFrame*);

// The calls under way that need the interpreter's lock. XLA starts calls on threads of its own, and
// whoever did not wait for a result may end the interpreter before. A thread that asks for the lock
// from then on is ended by Python, within XLA, which waits for it for ever. So the interpreter
// closes this at its exit: calls that began are waited for, later ones are refused.
class Calls {
 public:
  // false: the interpreter is ending, and its lock must not be asked for.
  bool begin() {
    ++running_;
    if (!closed_) return true;
    --running_;
    return false;
  }
  void end() { --running_; }

  void close() {
    closed_ = true;
    while (running_ != 0) std::this_thread::yield();
  }

  // A forked child has none of the threads whose calls were under way.
  void forget() { running_ = 0; }

 private:
  std::atomic<int> running_{0};
  std::atomic<bool> closed_{false};
};

// Answers a frame that asks for the version; false: the frame is a call.
inline bool answer_metadata(CallFrame* frame) {
  Extension* extension = frame->extensions;
  if (extension == nullptr || extension->type != MetadataExtension::kType) return false;
  Metadata* metadata = reinterpret_cast<MetadataExtension*>(extension)->metadata;
  metadata->version.major_version = kMajor;
  metadata->version.minor_version = kMinor;
  metadata->traits = 0;  // no graph keeps a call: memory that it takes for itself goes to others
  return true;
}

inline Error* error_of(const CallFrame* frame, const char* message) {
  ErrorArguments arguments = {sizeof(ErrorArguments), nullptr, message, kInvalidArgument};
  return frame->api->create_error(&arguments);
}

// The functions on a device return XLA's error, or NULL.

inline Error* stream_of(const CallFrame* frame, void** stream) {
  StreamArguments arguments = {sizeof(StreamArguments), nullptr, frame->context, nullptr};
  Error* error = frame->api->get_stream(&arguments);
  *stream = arguments.stream;
  return error;
}

// data OUT: memory of `size` bytes on the call's device, for work on its stream.
inline Error* allocate(const CallFrame* frame, size_t size, void** data) {
  constexpr size_t kAlignment = 16;  // a kernel's vector, and the most that XLA can be asked for
  AllocateArguments arguments = {
      sizeof(AllocateArguments), nullptr, frame->context, size, kAlignment, nullptr};
  Error* error = frame->api->allocate(&arguments);
  *data = arguments.data;
  return error;
}

inline Error* release(const CallFrame* frame, size_t size, void* data) {
  FreeArguments arguments = {sizeof(FreeArguments), nullptr, frame->context, size, data};
  return frame->api->free(&arguments);
}

}  // namespace fastact::xla
