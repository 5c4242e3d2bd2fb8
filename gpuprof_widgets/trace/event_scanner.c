/* Scans the events of a Chrome trace, and keeps its plain slices as columns.

   The text comes in blocks, each followed by PADDING zero bytes: a zero byte ends every loop, since
   JSON has none. An event that a block cuts off is scanned again, from its start, with the next
   block. Everything is checked as strictly as JSON demands, before anything of an event is kept.

   Plain are slices and instants of the keys and types that profilers write. Kineto's arrows from
   launch to kernel are counted only. All other events are "odd": the caller gets their places. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 1         /* of the functions at the end, as scanned_events.py calls them */
#define PADDING 16
#define MOST_ARGS 128     /* of one event */
#define MOST_KEYS 1000    /* of args in the file, each of which has a column */
#define DEEPEST 64        /* lists and objects in each other */
#define LIMIT (INT64_C(1) << 62)       /* of a time, in ns */
#define LONGEST (INT64_C(1) << 53)     /* of a duration, in ns */

enum status { MORE, END, FULL, BAD, NO_MEMORY };

typedef struct { const char *at; int64_t length; } Text;

/* An array that grows; ``length`` and ``room`` count bytes. */
typedef struct { char *data; int64_t length, room; } Array;

static void *extended(Array *array, int64_t bytes) {
    if (array->length + bytes > array->room) {
        int64_t room = array->room ? 2 * array->room : 1024;
        while (room < array->length + bytes) room *= 2;
        char *data = realloc(array->data, (size_t)room);
        if (!data) return NULL;
        array->data = data;
        array->room = room;
    }
    array->length += bytes;
    return array->data + array->length - bytes;
}

static int append(Array *array, const void *value, int64_t bytes) {
    void *place = extended(array, bytes);
    if (place) memcpy(place, value, (size_t)bytes);
    return place != NULL;
}

static void release(Array *array) {
    free(array->data);
    memset(array, 0, sizeof *array);
}

/* Distinct texts, numbered as they come. ``texts`` holds them with a comma behind each: with
   brackets around it, it is a JSON list. */
typedef struct {
    Array texts, starts, hashes; /* starts: int64_t; hashes: uint64_t */
    Array next;                  /* int32_t: the number that came after each, the last time */
    int32_t *slots;              /* number of a text, plus 1; 0: free */
    int64_t mask, count;
    int32_t last;                /* the number found before */
} Dictionary;

static uint64_t mixed(uint64_t a, uint64_t b) {
    a = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15);
    return a ^ (a >> 29);
}

static uint64_t word(const char *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static uint64_t hash_of(Text text, uint64_t seed) {
    uint64_t hash = mixed(seed, (uint64_t)text.length), last = 0;
    int64_t at = 0;
    for (; at + 8 <= text.length; at += 8) hash = mixed(hash, word(text.at + at));
    memcpy(&last, text.at + at, (size_t)(text.length - at));
    return mixed(mixed(hash, last), seed);
}

static int64_t start_of(const Dictionary *d, int64_t number) {
    return number < d->count ? ((int64_t *)d->starts.data)[number] : d->texts.length;
}

static int is_text(const Dictionary *d, int64_t number, Text text) {
    int64_t start = start_of(d, number);
    return start_of(d, number + 1) - start - 1 == text.length
        && !memcmp(d->texts.data + start, text.at, (size_t)text.length);
}

static int resized(Dictionary *d) {
    int64_t size = d->mask ? 2 * (d->mask + 1) : 64;
    int32_t *slots = calloc((size_t)size, sizeof *slots);
    if (!slots) return 0;
    for (int64_t number = 0; number < d->count; number++) {
        int64_t slot = (int64_t)((uint64_t *)d->hashes.data)[number] & (size - 1);
        while (slots[slot]) slot = (slot + 1) & (size - 1);
        slots[slot] = (int32_t)number + 1;
    }
    free(d->slots);
    d->slots = slots;
    d->mask = size - 1;
    return 1;
}

/* Returns the number of the text; -1 if there is no memory for it. */
static int32_t number_of(Dictionary *d, Text text, uint64_t seed) {
    int32_t *next = d->count ? (int32_t *)d->next.data + d->last : NULL;
    if (next && is_text(d, *next, text)) return d->last = *next; /* the steps of a run are alike */
    if (2 * d->count >= d->mask && !resized(d)) return -1;
    uint64_t hash = hash_of(text, seed);
    int64_t slot = (int64_t)hash & d->mask;
    for (; d->slots[slot]; slot = (slot + 1) & d->mask) {
        int32_t number = d->slots[slot] - 1;
        if (((uint64_t *)d->hashes.data)[number] == hash && is_text(d, number, text))
            return d->last = *next = number;
    }
    int64_t start = d->texts.length;
    if (d->count >= INT32_MAX - 1 || !append(&d->starts, &start, 8) || !append(&d->hashes, &hash, 8)
        || !append(&d->texts, text.at, text.length) || !append(&d->texts, ",", 1)
        || !append(&d->next, &d->last, 4))
        return -1;
    d->slots[slot] = (int32_t)++d->count;
    return d->last = (int32_t)d->count - 1;
}

static void clear(Dictionary *d) {
    release(&d->texts);
    release(&d->starts);
    release(&d->hashes);
    release(&d->next);
    free(d->slots);
    memset(d, 0, sizeof *d);
}

/* Values of args: whole numbers and floats as they are, all others as numbers of their texts. */
enum kind { WHOLE, FLOAT, OTHER, KINDS };
static const int64_t WIDTH[KINDS] = {8, 8, 4};

typedef struct {
    Array rows[KINDS]; /* int32_t */
    Array values[KINDS];
    int64_t event;     /* the last one that had this key, to find keys that come twice */
} Column;

typedef struct {
    Text key, text;
    int32_t column;
    enum kind kind;
    union { int64_t whole; double real; } number;
} Arg;

enum { NAMES, CATEGORIES, PROCESSES, THREADS, KEYS, VALUES, DICTIONARIES };
enum { TS, DUR, CODES, INSTANTS = CODES + 4, ARRAYS };

typedef struct {
    uint64_t seed;
    int64_t rows, events, containers;
    int64_t arrows[128];  /* launch arrows, by phase */
    Array arrays[ARRAYS]; /* ts, dur: int64_t; four codes: int32_t; rows of instants: int32_t */
    Dictionary dictionaries[DICTIONARIES];
    Column *columns;      /* of each key */
    int expects;          /* in the list: 0: an item or the end; 1: a comma or the end; 2: an item */
    /* while one event is scanned: */
    const char *end;
    enum status status;
    int odd, count, exponents;
    Arg args[MOST_ARGS];
} Scanner;

/* Ends the scan of an event: the block is over, or the text is no JSON. */
static const char *stopped(Scanner *s, const char *at) {
    s->status = at >= s->end ? MORE : BAD;
    return NULL;
}

static const char *after_space(const char *at) {
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
    return at;
}

#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))
#define ZEROS(x) (((x) - EACH(1)) & ~(x) & EACH(0x80))

/* Whether one of eight bytes ends a string, begins an escape, or is a control character. */
static int is_special(uint64_t w) {
    return (ZEROS(w ^ EACH('"')) | ZEROS(w ^ EACH('\\')) | ((w - EACH(0x20)) & ~w & EACH(0x80))) != 0;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_hex(char c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* Scans a string from its quotation mark on; returns the place behind it. ``text``: with marks. */
static const char *string(Scanner *s, const char *at, Text *text, int *escaped) {
    const char *start = at;
    if (*at != '"') return stopped(s, at);
    for (at++;;) {
        while (!is_special(word(at))) at += 8;
        while ((unsigned char)*at >= 0x20 && *at != '"' && *at != '\\') at++;
        if (*at == '"') break;
        if (*at != '\\') return stopped(s, at);
        *escaped = 1;
        at++;
        if (*at == 'u') {
            for (int digit = 1; digit <= 4; digit++)
                if (!is_hex(at[digit])) return stopped(s, at + digit);
            if ((at[1] | 32) == 'd') s->odd = 1; /* it may be half of a surrogate pair */
            at += 5;
        } else if (*at && strchr("\"\\/bfnrt", *at)) {
            at++;
        } else {
            return stopped(s, at);
        }
    }
    text->at = start;
    text->length = at + 1 - start;
    return at + 1;
}

static const char *digits(Scanner *s, const char *at) {
    if (!is_digit(*at)) return stopped(s, at);
    while (is_digit(*at)) at++;
    return at;
}

/* Scans a number; ``point``: the place of its decimal point; ``plain``: it has no exponent. */
static const char *number(Scanner *s, const char *at, const char **point, int *plain) {
    *point = NULL;
    *plain = 1;
    if (*at == '-') at++;
    if (*at == '0' && is_digit(at[1])) return stopped(s, at + 1);
    if (!(at = digits(s, at))) return NULL;
    if (*at == '.') {
        *point = at;
        if (!(at = digits(s, at + 1))) return NULL;
    }
    if ((*at | 32) == 'e') {
        *plain = 0;
        s->exponents++; /* it may be beyond all floats */
        at++;
        if (*at == '+' || *at == '-') at++;
        if (!(at = digits(s, at))) return NULL;
    }
    return at;
}

static const char *literal(Scanner *s, const char *at, const char *text) {
    for (; *text; at++, text++)
        if (*at != *text) return stopped(s, at);
    return at;
}

/* Scans any value; returns the place behind it. */
static const char *value(Scanner *s, const char *at, int depth) {
    Text text;
    const char *point;
    int escaped, plain;
    switch (*at) {
    case '"': return string(s, at, &text, &escaped);
    case 't': return literal(s, at, "true");
    case 'f': return literal(s, at, "false");
    case 'n': return literal(s, at, "null");
    case '[': case '{': break;
    default: return number(s, at, &point, &plain);
    }
    char closing = *at == '[' ? ']' : '}';
    s->containers++;
    if (depth == DEEPEST) {
        s->status = BAD;
        return NULL;
    }
    at = after_space(at + 1);
    if (*at == closing) return at + 1;
    for (;;) {
        if (closing == '}') {
            if (!(at = string(s, at, &text, &escaped))) return NULL;
            at = after_space(at);
            if (*at != ':') return stopped(s, at);
            at = after_space(at + 1);
        }
        if (!(at = value(s, at, depth + 1))) return NULL;
        at = after_space(at);
        if (*at == closing) return at + 1;
        if (*at != ',') return stopped(s, at);
        at = after_space(at + 1);
    }
}

static int64_t whole_of(const char *at, const char *end) {
    int64_t value = 0;
    for (; at < end; at++) value = 10 * value + (*at - '0');
    return value;
}

static const double POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
                                1e12, 1e13, 1e14, 1e15};

/* Reads the number as the argument's value if it is exact in int64_t, or by one division. */
static void number_arg(Arg *arg, const char *at, const char *point, const char *end, int plain) {
    int negative = *at == '-';
    const char *first = at + negative, *whole_end = point ? point : end;
    if (!plain || end - first > (point ? 16 : 18)) return;
    int64_t value = whole_of(first, whole_end);
    if (!point) {
        if (negative && !value) return;
        arg->kind = WHOLE;
        arg->number.whole = negative ? -value : value;
        return;
    }
    int64_t decimals = end - point - 1;
    for (const char *digit = point + 1; digit < end; digit++) value = 10 * value + (*digit - '0');
    double real = (double)value / POWERS[decimals]; /* exact operands: the quotient is rounded once */
    arg->kind = FLOAT;
    arg->number.real = negative ? -real : real;
}

static const char *args(Scanner *s, const char *at) {
    s->containers++;
    at = after_space(at + 1);
    if (*at == '}') return at + 1;
    for (;;) {
        Arg extra, *arg = s->count < MOST_ARGS ? &s->args[s->count] : &extra;
        const char *point, *start;
        int escaped = 0, plain;
        if (arg == &extra) s->odd = 1;
        if (!(at = string(s, at, &arg->key, &escaped))) return NULL;
        if (escaped) s->odd = 1;
        at = after_space(at);
        if (*at != ':') return stopped(s, at);
        start = at = after_space(at + 1);
        arg->kind = OTHER;
        if (*at == '-' || is_digit(*at)) {
            if (!(at = number(s, at, &point, &plain))) return NULL;
            number_arg(arg, start, point, at, plain);
        } else if (!(at = value(s, at, 2))) {
            return NULL;
        }
        arg->text.at = start;
        arg->text.length = at - start;
        if (arg != &extra) s->count++;
        at = after_space(at);
        if (*at == '}') return at + 1;
        if (*at != ',') return stopped(s, at);
        at = after_space(at + 1);
    }
}

/* Turns a text of µs without sign and exponent into ns, as `nanoseconds` does; -1: it cannot. */
static int64_t time_of(Text text) {
    const char *at = text.at, *end = text.at + text.length;
    int64_t ns = 0, scale = 1000;
    if (text.length == 0) return -1;
    for (; at < end && is_digit(*at); at++)
        if ((ns = 10 * ns + (*at - '0')) >= LIMIT / 1000) return -1;
    if (at == text.at || (at < end && *at != '.')) return -1;
    for (at++; at < end && scale > 1; at++, scale /= 10) {
        if (!is_digit(*at)) return -1;
        ns = 10 * ns + (*at - '0');
    }
    ns *= scale;
    if (at < end) { /* more than 3 decimals: half to even */
        int first = *at - '0', more = 0;
        if (!is_digit(*at)) return -1;
        while (++at < end) {
            if (!is_digit(*at)) return -1;
            more |= *at != '0';
        }
        ns += first > 5 || (first == 5 && (more || ns % 2));
    }
    return ns < LIMIT ? ns : -1;
}

static int is(Text text, const char *word) {
    return text.length == (int64_t)strlen(word) && !memcmp(text.at, word, (size_t)text.length);
}

enum key { PH, CAT, NAME, PID, TID, TS_KEY, DUR_KEY, ARGS, ID, S, FREE, FORBIDDEN, UNKNOWN };
#define QUOTED(word) "\"" word "\"", sizeof word + 1
static const struct { const char *text; int64_t length; enum key key; } KNOWN[] = {
    {QUOTED("ph"), PH}, {QUOTED("cat"), CAT}, {QUOTED("name"), NAME}, {QUOTED("pid"), PID},
    {QUOTED("tid"), TID}, {QUOTED("ts"), TS_KEY}, {QUOTED("dur"), DUR_KEY}, {QUOTED("args"), ARGS},
    {QUOTED("id"), ID}, {QUOTED("s"), S}, {QUOTED("bp"), FREE}, {QUOTED("id2"), FREE},
    {QUOTED("flow_in"), FREE}, {QUOTED("flow_out"), FREE}, {QUOTED("bind_id"), FORBIDDEN},
    {QUOTED("sf"), FORBIDDEN}, {QUOTED("stack"), FORBIDDEN},
};

static enum key key_of(Text text) {
    for (size_t k = 0; k < sizeof KNOWN / sizeof *KNOWN; k++)
        if (text.length == KNOWN[k].length
            && !memcmp(text.at, KNOWN[k].text, (size_t)text.length))
            return KNOWN[k].key;
    return UNKNOWN;
}

/* Whether the value is one that this key of an event may have; else the event is odd. */
static int fits(enum key key, Text text) {
    char first = *text.at;
    int whole = (first == '-' || is_digit(first)) && !memchr(text.at, '.', (size_t)text.length)
             && !memchr(text.at, 'e', (size_t)text.length)
             && !memchr(text.at, 'E', (size_t)text.length);
    switch (key) {
    case PH: case CAT: case NAME: case S: return first == '"';
    case PID: case TID: case ID: return first == '"' || whole; /* 1.0 and 1 are one thread */
    case ARGS: return first == '{';
    case FORBIDDEN: return 0;
    default: return 1;
    }
}

static int launch_arrow(Text category, Text name) {
    return (is(category, "\"ac2g\"") && is(name, "\"ac2g\""))
        || (is(category, "\"async_cpu_to_gpu\"") && is(name, "\"async_gpu\""))
        || (is(category, "\"async\"") && is(name, "\"launch\""));
}

static int keep(Scanner *s, const Text *texts, int64_t ts, int64_t dur, char phase) {
    static const enum key CODED[4] = {NAME, CAT, PID, TID};
    int32_t row = (int32_t)s->rows;
    for (int a = 0; a < s->count; a++) { /* first, because a key that comes twice makes it odd */
        int32_t key = number_of(&s->dictionaries[KEYS], s->args[a].key, s->seed);
        if (key < 0) return 0;
        if (key >= MOST_KEYS) {
            s->status = BAD;
            return 0;
        }
        Column *column = &s->columns[key];
        if (column->event == s->events + 1) s->odd = 1;
        column->event = s->events + 1;
        s->args[a].column = key;
    }
    if (s->odd) return 1;
    for (int a = 0; a < s->count; a++) {
        Arg *arg = &s->args[a];
        Column *column = &s->columns[arg->column];
        int32_t code;
        const void *value = &arg->number;
        if (arg->kind == OTHER) {
            if ((code = number_of(&s->dictionaries[VALUES], arg->text, s->seed)) < 0) return 0;
            value = &code;
        }
        if (!append(&column->rows[arg->kind], &row, 4)
            || !append(&column->values[arg->kind], value, WIDTH[arg->kind]))
            return 0;
    }
    for (int c = 0; c < 4; c++) {
        int32_t code = number_of(&s->dictionaries[NAMES + c], texts[CODED[c]], s->seed);
        if (code < 0 || !append(&s->arrays[CODES + c], &code, 4)) return 0;
    }
    if (phase != 'X' && !append(&s->arrays[INSTANTS], &row, 4)) return 0;
    if (!append(&s->arrays[TS], &ts, 8) || !append(&s->arrays[DUR], &dur, 8)) return 0;
    s->status = BAD;
    return ++s->rows < INT32_MAX;
}

/* Scans one event; returns the place behind it, or NULL with the status. ``s->odd``: it is odd. */
static const char *event(Scanner *s, const char *at) {
    static const Text NOTHING = {"null", 4};
    Text texts[UNKNOWN + 1] = {{0}};
    unsigned seen = 0;
    s->odd = s->count = s->exponents = 0;
    s->status = NO_MEMORY;
    if (*at != '{') return stopped(s, at);
    s->containers++;
    at = after_space(at + 1);
    while (*at != '}') {
        Text key_text;
        const char *start;
        int escaped = 0, exponents = s->exponents;
        if (!(at = string(s, at, &key_text, &escaped))) return NULL;
        if (escaped) s->odd = 1; /* it may be any of the known ones */
        escaped = 0;
        enum key key = key_of(key_text);
        at = after_space(at);
        if (*at != ':') return stopped(s, at);
        start = at = after_space(at + 1);
        if (key == ARGS && *at == '{' && !(seen & 1u << ARGS)) {
            at = args(s, at);
        } else if (*at == '"') {
            at = string(s, at, &texts[key], &escaped);
        } else {
            at = value(s, at, 1);
        }
        if (!at) return NULL;
        texts[key].at = start;
        texts[key].length = at - start;
        if (escaped && key != NAME && key != UNKNOWN) s->odd = 1;
        if (key < FREE && seen & 1u << key) s->odd = 1;
        if (!fits(key, texts[key])) s->odd = 1;
        if (key == FREE && s->exponents > exponents) s->odd = 1;
        seen |= 1u << key;
        at = after_space(at);
        if (*at == ',') {
            at = after_space(at + 1);
            if (*at != '"') return stopped(s, at);
        } else if (*at != '}') {
            return stopped(s, at);
        }
    }
    at++;
    if (s->odd || texts[PH].length != 3 || !texts[NAME].length) {
        s->odd = 1;
        return at;
    }
    char phase = texts[PH].at[1];
    if (strchr("stf", phase) && launch_arrow(texts[CAT], texts[NAME]) && !s->exponents) {
        s->arrows[(int)phase]++;
        return at;
    }
    if (!strchr("XiIR", phase) || is(texts[CAT], "\"Trace\"") || is(texts[S], "\"g\"")) {
        s->odd = 1;
        return at;
    }
    int64_t ts = time_of(texts[TS_KEY]), dur = phase == 'X' ? time_of(texts[DUR_KEY]) : 0;
    if (ts < 0 || dur < 0 || dur >= LONGEST) {
        s->odd = 1;
        return at;
    }
    if (texts[CAT].length <= 2) texts[CAT] = texts[PH];
    if (!texts[PID].length) texts[PID] = NOTHING;
    if (!texts[TID].length) texts[TID] = NOTHING;
    return keep(s, texts, ts, dur, phase) ? at : NULL;
}

int32_t scanner_version(void) { return VERSION; }

/* Returns a scanner; NULL if there is no memory. */
Scanner *scanner_new(uint64_t seed) {
    Scanner *s = calloc(1, sizeof *s);
    Column *columns = calloc(MOST_KEYS, sizeof *columns);
    if (!s || !columns) {
        free(s);
        free(columns);
        return NULL;
    }
    s->seed = seed;
    s->columns = columns;
    return s;
}

void scanner_free(Scanner *s) {
    for (int k = 0; k < MOST_KEYS; k++)
        for (int kind = 0; kind < KINDS; kind++) {
            release(&s->columns[k].rows[kind]);
            release(&s->columns[k].values[kind]);
        }
    for (int a = 0; a < ARRAYS; a++) release(&s->arrays[a]);
    for (int d = 0; d < DICTIONARIES; d++) clear(&s->dictionaries[d]);
    free(s->columns);
    free(s);
}

/* Scans items of the list in text[start:end]; returns the place of what it did not take.

   ``odd`` gets start and end of each odd event, ``count`` their number, at most ``room``.
   ``status``: MORE: the rest of the text is needed; END: the list has ended; FULL: of odd events;
   BAD: no JSON, or no trace that can be read so; NO_MEMORY. */
int64_t scanner_scan(Scanner *s, const char *text, int64_t start, int64_t end, int64_t *odd,
                     int64_t room, int64_t *count, int32_t *status) {
    const char *at = text + start;
    s->end = text + end;
    *count = 0;
    for (;;) {
        const char *next = after_space(at);
        if (next >= s->end) {
            *status = MORE;
            return next - text;
        }
        if (s->expects != 2 && *next == ']') {
            *status = END;
            return next + 1 - text;
        }
        if (s->expects == 1) {
            if (*next != ',') {
                *status = BAD;
                return next - text;
            }
            s->expects = 2;
            at = next + 1;
            continue;
        }
        if (*count == room) {
            *status = FULL;
            return next - text;
        }
        int64_t containers = s->containers;
        at = event(s, next);
        if (!at) {
            s->containers = containers;
            *status = (int32_t)s->status;
            return next - text;
        }
        if (s->odd) {
            odd[2 * *count] = next - text;
            odd[2 * (*count)++ + 1] = at - text;
        }
        s->events++;
        s->expects = 1;
    }
}

/* Returns the place of the first byte from text[start] on that is no space. */
int64_t scanner_skip(const char *text, int64_t start) { return after_space(text + start) - text; }

/* Scans one value at text[start]; returns the place behind it; -1: it is cut off; -2: no JSON. */
int64_t scanner_value(Scanner *s, const char *text, int64_t start, int64_t end) {
    s->end = text + end;
    int64_t containers = s->containers;
    const char *at = value(s, text + start, 0);
    if (at && at < s->end) return at - text; /* a number that ends with the block may go on */
    s->containers = containers;
    return at || s->status == MORE ? -1 : -2;
}

/* Returns numbers of the scan: rows, events, containers, keys; else arrows of phase ``what``. */
int64_t scanner_total(const Scanner *s, int32_t what) {
    const int64_t totals[] = {s->rows, s->events, s->containers, s->dictionaries[KEYS].count};
    return what < 4 ? totals[what] : s->arrows[what];
}

static Array *array_of(Scanner *s, int32_t group, int32_t number, int32_t kind) {
    switch (group) {
    case 0: return &s->arrays[number];
    case 1: return &s->dictionaries[number].texts;
    case 2: return &s->columns[number].rows[kind];
    default: return &s->columns[number].values[kind];
    }
}

/* Returns the bytes of an array, which are the caller's from now on, and their number.

   group 0: an array of all rows; 1: texts of a dictionary; 2: rows of a key, by kind; 3: values. */
char *scanner_take(Scanner *s, int32_t group, int32_t number, int32_t kind, int64_t *bytes) {
    Array *array = array_of(s, group, number, kind);
    char *data = array->data;
    *bytes = array->length;
    memset(array, 0, sizeof *array);
    return data;
}

/* Frees bytes that `scanner_take` returned. */
void scanner_give_back(char *data) { free(data); }
