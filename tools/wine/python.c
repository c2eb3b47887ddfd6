#include <windows.h>
#include <wchar.h>
int wmain(int argc, wchar_t **argv) {
  static wchar_t path[32768];
  DWORD length = GetModuleFileNameW(NULL, path, 32768 - 16);
  while (length && path[length - 1] != L'\\') length--;
  wcscpy(path + length, L"python311.dll");
  HMODULE library = LoadLibraryExW(path, NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
  int (*py_main)(int, wchar_t **) = library ? (void *)GetProcAddress(library, "Py_Main") : NULL;
  return py_main ? py_main(argc, argv) : 127;
}
