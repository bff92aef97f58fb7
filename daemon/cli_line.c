/* Line editing for `pantheon --chat`: arrows, Home/End, Ctrl-A/E/K/U/W/L, history, UTF-8, pasted text. The terminal is raw only
 * while a line is read, so Ctrl-C during an answer is an ordinary signal. Without a terminal on both ends lines are read plainly. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "daemon/cli.h"
#include "foundry/base/buf.h"

enum { MAX_LINE = 1 << 20, MAX_HISTORY = 200 };

struct pd_line {
    struct fo_buf text;           /* the line being edited, or the one returned */
    size_t at;                    /* cursor, a byte offset at a character's start */
    char *history[MAX_HISTORY];   /* oldest first */
    int n_history;
    int rows_below;               /* terminal rows that the last drawing took, less one */
};

struct pd_line *pd_line_new(void) {
    struct pd_line *l = calloc(1, sizeof *l);
    if (l) fo_buf_init(&l->text, MAX_LINE);
    return l;
}

void pd_line_free(struct pd_line *l) {
    if (!l) return;
    for (int i = 0; i < l->n_history; i++) free(l->history[i]);
    fo_buf_done(&l->text);
    free(l);
}

static bool is_tail(char c) {
    return ((unsigned char)c & 0xC0) == 0x80;
}

static size_t before(const struct pd_line *l, size_t at) {
    if (at == 0) return 0;
    do at--;
    while (at > 0 && is_tail(l->text.data[at]));
    return at;
}

static size_t after(const struct pd_line *l, size_t at) {
    if (at >= l->text.len) return l->text.len;
    do at++;
    while (at < l->text.len && is_tail(l->text.data[at]));
    return at;
}

/* Columns of bytes [0, n): one a character. Wide characters are drawn right but the cursor may stand a column off. */
static size_t columns(const char *s, size_t n) {
    size_t c = 0;
    for (size_t i = 0; i < n; i++) c += !is_tail(s[i]);
    return c;
}

static void draw(struct pd_line *l, const char *prompt) {
    struct winsize w = { 0 };
    size_t cols = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
    const char *s = fo_buf_str(&l->text);
    size_t p = columns(prompt, strlen(prompt)), all = p + columns(s, l->text.len), cur = p + columns(s, l->at);
    if (l->rows_below > 0) printf("\033[%dA", l->rows_below);
    printf("\r\033[J%s%s", prompt, s);
    if (all % cols == 0 && all > 0) fputs("\r\n", stdout); /* the terminal waits at the margin: make the row exist */
    int end_row = (int)(all / cols), row = (int)(cur / cols), col = (int)(cur % cols);
    if (end_row > row) printf("\033[%dA", end_row - row);
    printf("\r");
    if (col > 0) printf("\033[%dC", col);
    l->rows_below = row;
    fflush(stdout);
}

static void insert(struct pd_line *l, const char *bytes, size_t n) {
    size_t tail = l->text.len - l->at;
    if (!fo_buf_append(&l->text, bytes, n)) {
        l->text.failed = false; /* the line is full: what is there stays */
        return;
    }
    memmove(l->text.data + l->at + n, l->text.data + l->at, tail);
    memcpy(l->text.data + l->at, bytes, n);
    l->at += n;
}

static void erase(struct pd_line *l, size_t from, size_t to) {
    memmove(l->text.data + from, l->text.data + to, l->text.len - to);
    l->text.len -= to - from;
    l->text.data[l->text.len] = '\0';
    l->at = from;
}

static void replace(struct pd_line *l, const char *s) {
    fo_buf_clear(&l->text);
    fo_buf_puts(&l->text, s);
    l->at = l->text.len;
}

static void remember(struct pd_line *l) {
    const char *s = fo_buf_str(&l->text);
    if (!*s || (l->n_history > 0 && strcmp(l->history[l->n_history - 1], s) == 0)) return;
    char *copy = strdup(s);
    if (!copy) return;
    if (l->n_history == MAX_HISTORY) {
        free(l->history[0]);
        memmove(l->history, l->history + 1, sizeof l->history - sizeof l->history[0]);
        l->n_history--;
    }
    l->history[l->n_history++] = copy;
}

static enum pd_line_result read_plain(struct pd_line *l) {
    for (char c;;) {
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR) {
            if (pd_cli_interrupted()) return PD_LINE_EOF; /* no terminal: Ctrl-C means the program */
            continue;
        }
        if (n <= 0) return l->text.len ? PD_LINE_OK : PD_LINE_EOF;
        if (c == '\n') return PD_LINE_OK;
        if (c != '\r' && c != '\0') fo_buf_putc(&l->text, c);
    }
}

/* One key press as a code: bytes themselves, or these. */
enum key { KEY_LEFT = 256, KEY_RIGHT, KEY_UP, KEY_DOWN, KEY_HOME, KEY_END, KEY_DELETE, KEY_NONE, KEY_GONE };

static int read_key(void) {
    unsigned char c;
    ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) return KEY_NONE;
    if (n <= 0) return KEY_GONE;
    if (c != 27) return c;
    unsigned char s[3];
    if (read(STDIN_FILENO, &s[0], 1) != 1 || (s[0] != '[' && s[0] != 'O') || read(STDIN_FILENO, &s[1], 1) != 1) return KEY_NONE;
    switch (s[1]) {
    case 'A': return KEY_UP;
    case 'B': return KEY_DOWN;
    case 'C': return KEY_RIGHT;
    case 'D': return KEY_LEFT;
    case 'H': return KEY_HOME;
    case 'F': return KEY_END;
    }
    if (s[1] < '0' || s[1] > '9') return KEY_NONE;
    int number = s[1] - '0';
    while (read(STDIN_FILENO, &s[2], 1) == 1 && s[2] != '~' && (s[2] == ';' || (s[2] >= '0' && s[2] <= '9'))) {
        if (s[2] != ';' && number < 1000) number = number * 10 + (s[2] - '0');
    }
    return number == 3 ? KEY_DELETE : number == 1 || number == 7 ? KEY_HOME : number == 4 || number == 8 ? KEY_END : KEY_NONE;
}

static enum pd_line_result edit(struct pd_line *l, const char *prompt) {
    int shown = l->n_history; /* which history line is on screen */
    char *draft = NULL;       /* what was typed before walking into the history */
    enum pd_line_result result = PD_LINE_EOF;
    for (;;) {
        draw(l, prompt);
        int k = read_key();
        if (k == KEY_GONE) break;
        if (k == '\r' || k == '\n') {
            result = PD_LINE_OK;
            break;
        }
        if (k == 3) { /* Ctrl-C: an empty line says how to leave, another is dropped */
            result = PD_LINE_INTERRUPT;
            break;
        }
        if (k == 4 && l->text.len == 0) break;
        switch (k) {
        case KEY_LEFT: case 2: l->at = before(l, l->at); break;
        case KEY_RIGHT: case 6: l->at = after(l, l->at); break;
        case KEY_HOME: case 1: l->at = 0; break;
        case KEY_END: case 5: l->at = l->text.len; break;
        case KEY_DELETE: case 4:
            if (l->at < l->text.len) erase(l, l->at, after(l, l->at));
            break;
        case 127: case 8:
            if (l->at > 0) erase(l, before(l, l->at), l->at);
            break;
        case 11:
            if (l->text.data) erase(l, l->at, l->text.len);
            break;
        case 21:
            if (l->at > 0) erase(l, 0, l->at);
            break;
        case 23: {
            size_t from = l->at;
            while (from > 0 && l->text.data[from - 1] == ' ') from--;
            while (from > 0 && l->text.data[from - 1] != ' ') from--;
            if (from < l->at) erase(l, from, l->at);
            break;
        }
        case 12: fputs("\033[H\033[2J", stdout); l->rows_below = 0; break;
        case KEY_UP: case KEY_DOWN: {
            int want = shown + (k == KEY_UP ? -1 : 1);
            if (want < 0 || want > l->n_history) break;
            if (shown == l->n_history) {
                free(draft);
                draft = strdup(fo_buf_str(&l->text));
            }
            shown = want;
            replace(l, shown == l->n_history ? (draft ? draft : "") : l->history[shown]);
            break;
        }
        default:
            if (k >= 32 && k < 256) insert(l, &(char){ (char)k }, 1);
        }
    }
    free(draft);
    l->at = l->text.len;
    draw(l, prompt);
    fputs("\r\n", stdout);
    fflush(stdout);
    return result;
}

/* A signal that ends the process while the terminal is raw must not leave it so. */
static struct termios cooked;

static void restore_and_die(int sig) {
    tcsetattr(STDIN_FILENO, TCSANOW, &cooked);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Installs that handler, or puts back what was there. */
static void guard_terminal(bool on, struct sigaction old[2]) {
    static const int fatal[2] = { SIGTERM, SIGHUP };
    struct sigaction sa = { .sa_handler = restore_and_die };
    sigemptyset(&sa.sa_mask);
    for (int i = 0; i < 2; i++) sigaction(fatal[i], on ? &sa : &old[i], on ? &old[i] : NULL);
}

enum pd_line_result pd_line_read(struct pd_line *l, const char *prompt, const char **ret_text) {
    fo_buf_clear(&l->text);
    l->at = 0;
    l->rows_below = 0;
    enum pd_line_result result;
    struct termios old, raw;
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && tcgetattr(STDIN_FILENO, &old) == 0) {
        raw = old;
        raw.c_iflag &= ~(tcflag_t)(ICRNL | IXON);
        raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON | IEXTEN | ISIG);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        struct sigaction handlers[2];
        cooked = old;
        guard_terminal(true, handlers);
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
        result = edit(l, prompt);
        tcsetattr(STDIN_FILENO, TCSADRAIN, &old);
        guard_terminal(false, handlers);
        if (result == PD_LINE_INTERRUPT && l->text.len == 0) fputs("Ctrl-D ends the chat.\n", stderr);
        remember(l);
    } else {
        result = read_plain(l);
    }
    *ret_text = fo_buf_str(&l->text);
    return result;
}
