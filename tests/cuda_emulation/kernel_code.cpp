#include "kernel_code.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "block.h"

namespace fastact::emulation {
namespace {

// Addresses are the file's, as the linker laid it out.
struct Range {
  uint64_t begin, end;
  bool operator<(const Range& other) const { return begin < other.begin; }
};
struct Reference {
  uint64_t from, to;
  bool operator<(const Reference& other) const { return from < other.from; }
};

// The range that an address is in, or null.
const Range* find(const std::vector<Range>& ranges, uint64_t address) {
  auto after = std::upper_bound(ranges.begin(), ranges.end(), Range{address, 0});
  if (after == ranges.begin() || (--after)->end <= address) return nullptr;
  return &*after;
}

class Library {
 public:
  Library() {
    Dl_info info;
    if (!dladdr(reinterpret_cast<const void*>(&static_shared_of), &info))
      throw std::runtime_error("fastact: the emulated device does not find its own file");
    base_ = static_cast<const char*>(info.dli_fbase);
    std::ifstream file(info.dli_fname, std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(file), {});
    sections_ = at<Elf64_Shdr>(at<Elf64_Ehdr>(0)->e_shoff);
    count_ = at<Elf64_Ehdr>(0)->e_shnum;
    read_symbols();
    for (int i = 0; i < count_; ++i)
      if (sections_[i].sh_type == SHT_RELA &&
          sections_[sections_[i].sh_info].sh_flags & SHF_EXECINSTR)
        read_relocations(sections_[i]);
    if (sites_.empty() || references_.empty())
      throw std::runtime_error("fastact: the emulated device was stripped of its relocations");
    std::sort(functions_.begin(), functions_.end());
    std::sort(sites_.begin(), sites_.end());
    std::sort(references_.begin(), references_.end());
    file_ = {};
  }

  uint64_t begin(const void* kernel) const {
    return uint64_t(static_cast<const char*>(kernel) - base_);
  }
  const std::string& name_of(const void* kernel) const { return names_.at(begin(kernel)); }

  std::vector<const SharedSite*> arrays_of(const void* kernel) const {
    std::vector<const SharedSite*> found;
    std::set<const Range*> seen;
    std::vector<const Range*> left{find(functions_, begin(kernel))};
    while (!left.empty()) {
      const Range* next = left.back();
      left.pop_back();
      if (!next || !seen.insert(next).second) continue;
      auto reference =
          std::lower_bound(references_.begin(), references_.end(), Reference{next->begin, 0});
      for (; reference != references_.end() && reference->from < next->end; ++reference) {
        left.push_back(find(functions_, reference->to));
        const Range* site = find(sites_, reference->to);
        if (site && seen.insert(site).second)
          found.push_back(reinterpret_cast<const SharedSite*>(base_ + site->begin));
      }
    }
    return found;
  }

 private:
  template <class T>
  const T* at(uint64_t offset) const {
    return reinterpret_cast<const T*>(file_.data() + offset);
  }

  void read_symbols() {
    for (int i = 0; i < count_; ++i) {
      if (sections_[i].sh_type != SHT_SYMTAB) continue;
      symbols_ = at<Elf64_Sym>(sections_[i].sh_offset);
      const char* names = at<char>(sections_[sections_[i].sh_link].sh_offset);
      for (size_t k = 0; k < sections_[i].sh_size / sizeof(Elf64_Sym); ++k) {
        const Elf64_Sym& symbol = symbols_[k];
        if (symbol.st_shndx == SHN_UNDEF || symbol.st_size == 0) continue;
        const Range range{symbol.st_value, symbol.st_value + symbol.st_size};
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) {
          functions_.push_back(range);
          names_[symbol.st_value] = names + symbol.st_name;
        }
        if (std::string(names + symbol.st_name).find("fastact_site_of_") != std::string::npos &&
            symbol.st_size == sizeof(SharedSite))
          sites_.push_back(range);
      }
    }
  }

  void read_relocations(const Elf64_Shdr& section) {
    if (!symbols_) return;
    // An instruction of x86-64 counts from its end, which most have 4 bytes behind the place.
    const uint64_t behind = at<Elf64_Ehdr>(0)->e_machine == EM_X86_64 ? 4 : 0;
    const auto* all = at<Elf64_Rela>(section.sh_offset);
    for (size_t k = 0; k < section.sh_size / sizeof(Elf64_Rela); ++k) {
      const Elf64_Sym& symbol = symbols_[ELF64_R_SYM(all[k].r_info)];
      if (symbol.st_shndx == SHN_UNDEF) continue;
      uint64_t to = symbol.st_value;
      if (ELF64_ST_TYPE(symbol.st_info) == STT_SECTION) to += uint64_t(all[k].r_addend) + behind;
      references_.push_back({all[k].r_offset, to});
    }
  }

  const char* base_;
  std::vector<char> file_;  // while it is read
  const Elf64_Shdr* sections_;
  int count_;
  const Elf64_Sym* symbols_ = nullptr;
  std::vector<Range> functions_, sites_;
  std::unordered_map<uint64_t, std::string> names_;  // by where functions begin
  std::vector<Reference> references_;
};

const Library& library() {
  static const auto* read = new Library;
  return *read;
}

}  // namespace

const std::string& symbol_of(const void* kernel) { return library().name_of(kernel); }

const std::vector<const SharedSite*>& static_arrays(const void* kernel) {
  static auto* known = new std::unordered_map<const void*, std::vector<const SharedSite*>>;
  const auto found = known->find(kernel);
  if (found != known->end()) return found->second;
  return (*known)[kernel] = library().arrays_of(kernel);
}

size_t static_shared_of(const void* kernel) {
  size_t bytes = 0;
  for (const SharedSite* site : static_arrays(kernel)) bytes += site->item * site->count;
  return bytes;
}

int threads_of(const void* kernel) {
#if defined(__aarch64__)
  using Instruction = uint32_t;
  constexpr Instruction kNop = 0xd503201f, kTarget = 0xd503245f;  // bti c
#else
  using Instruction = uint8_t;
  constexpr Instruction kNop = 0x90;
  constexpr uint32_t kTarget = 0xfa1e0ff3;  // endbr64
#endif
  const auto* code = static_cast<const Instruction*>(kernel);
  uint32_t first;
  memcpy(&first, code, sizeof(first));
  if (first == kTarget) code += sizeof(first) / sizeof(Instruction);
  int warps = 0;
  while (code[warps] == kNop) ++warps;
  return warps * kWarpLanes;
}

}  // namespace fastact::emulation
