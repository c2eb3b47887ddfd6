/* What CPython's venvlauncher.exe does: starts python.exe of the `home` in pyvenv.cfg, in a job, with __PYVENV_LAUNCHER__ set. */
#include <windows.h>
#include <wchar.h>
#include <stdio.h>
static wchar_t self[32768], line[32768], home[32768], command[65536];
static BOOL WINAPI ignored(DWORD event) { (void)event; return TRUE; }
static int config(wchar_t *folder) {
  wchar_t path[32768];
  char text[32768];
  swprintf(path, 32768, L"%ls\\pyvenv.cfg", folder);
  HANDLE file = CreateFileW(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING, 0, NULL);
  DWORD length = 0;
  if (file == INVALID_HANDLE_VALUE) return 0;
  ReadFile(file, text, sizeof text - 1, &length, NULL);
  CloseHandle(file);
  text[length] = 0;
  for (char *at = strtok(text, "\r\n"); at; at = strtok(NULL, "\r\n")) {
    char *value = strchr(at, '=');
    if (strncmp(at, "home", 4) || !value || (at[4] != ' ' && at[4] != '=')) continue;
    value++;
    while (*value == ' ') value++;
    return MultiByteToWideChar(CP_UTF8, 0, value, -1, home, 32768);
  }
  return 0;
}
int wmain(void) {
  GetModuleFileNameW(NULL, self, 32768);
  wchar_t folder[32768], *end;
  wcscpy(folder, self);
  for (int up = 0;; up++) {
    if (up == 2 || !(end = wcsrchr(folder, L'\\'))) { fputws(L"failed to locate pyvenv.cfg\n", stderr); return 106; }
    *end = 0;
    if (config(folder)) break;
  }
  swprintf(line, 32768, L"%ls\\python.exe", home);
  wchar_t *rest = GetCommandLineW();  /* what follows the name of the program */
  if (*rest == L'"') { rest = wcschr(rest + 1, L'"'); rest = rest ? rest + 1 : L""; } else while (*rest && *rest != L' ' && *rest != L'\t') rest++;
  swprintf(command, 65536, L"\"%ls\"%ls", line, rest);
  SetEnvironmentVariableW(L"__PYVENV_LAUNCHER__", self);
  SetConsoleCtrlHandler(ignored, TRUE);
  HANDLE job = CreateJobObjectW(NULL, NULL);
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {0};
  limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK;
  SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
  STARTUPINFOW start = {0};
  PROCESS_INFORMATION process;
  GetStartupInfoW(&start);
  start.dwFlags |= STARTF_USESTDHANDLES;
  start.hStdInput = GetStdHandle(STD_INPUT_HANDLE), start.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE), start.hStdError = GetStdHandle(STD_ERROR_HANDLE);
  if (!CreateProcessW(line, command, NULL, NULL, TRUE, 0, NULL, NULL, &start, &process)) { fwprintf(stderr, L"Unable to create process using '%ls'\n", command); return 101; }
  AssignProcessToJobObject(job, process.hProcess);
  CloseHandle(process.hThread);
  WaitForSingleObject(process.hProcess, INFINITE);
  DWORD status = 101;
  GetExitCodeProcess(process.hProcess, &status);
  return (int)status;
}
