#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *data, SIZE_T length) {
  for (ULONG part; length; data += part, length -= part)
    if (!SystemFunction036(data, part = length > 0x10000000 ? 0x10000000 : (ULONG)length)) return FALSE;
  return TRUE;
}
