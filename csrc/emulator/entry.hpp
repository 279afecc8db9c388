// How the runtime calls a kernel: arguments by address, their types told to Python by one letter.
#pragma once

namespace mdf_emu {

template <int... K>
struct Numbers {};
template <int N, int... K>
struct CountTo : CountTo<N - 1, N - 1, K...> {};
template <int... K>
struct CountTo<0, K...> {
  using type = Numbers<K...>;
};

template <class T>
struct Letter {
  static_assert(sizeof(T) == 0,
                "a kernel parameter is a pointer, an integer, float, double or bool");
};
template <class T>
struct Letter<T*> {
  static constexpr char value = 'P';
};
#define MDF_EMU_LETTER(T, letter)             \
  template <>                                 \
  struct Letter<T> {                          \
    static constexpr char value = letter;     \
  };
MDF_EMU_LETTER(signed char, 'b')
MDF_EMU_LETTER(unsigned char, 'B')
MDF_EMU_LETTER(short, 'h')
MDF_EMU_LETTER(unsigned short, 'H')
MDF_EMU_LETTER(int, 'i')
MDF_EMU_LETTER(unsigned, 'I')
MDF_EMU_LETTER(long, 'q')
MDF_EMU_LETTER(long long, 'q')
MDF_EMU_LETTER(unsigned long, 'Q')
MDF_EMU_LETTER(unsigned long long, 'Q')
MDF_EMU_LETTER(float, 'f')
MDF_EMU_LETTER(double, 'd')
MDF_EMU_LETTER(bool, '?')
#undef MDF_EMU_LETTER

template <class... A>
struct Signature {
  // One more than needed: an array cannot be empty, and text ends in 0.
  static constexpr char value[] = {Letter<A>::value..., 0};
};

template <class... A, int... K>
inline void call(void (*kernel)(A...), void** args, Numbers<K...>) {
  kernel(*static_cast<A*>(args[K])...);
}
template <class... A>
inline void call(void (*kernel)(A...), void** args) {
  call(kernel, args, typename CountTo<int(sizeof...(A))>::type{});
}
template <class... A>
constexpr const char* signature(void (*)(A...)) {
  return Signature<A...>::value;
}

}  // namespace mdf_emu

// One for each kernel of a source, at its end.
#define MDF_EMULATOR_ENTRY(kernel)                                                            \
  extern "C" __attribute__((visibility("default"))) void mdf_emu_entry_##kernel(void** args) { \
    ::mdf_emu::call(&kernel, args);                                                           \
  }                                                                                           \
  extern "C" __attribute__((visibility("default")))                                           \
  const char* mdf_emu_signature_##kernel(void) {                                              \
    return ::mdf_emu::signature(&kernel);                                                     \
  }
