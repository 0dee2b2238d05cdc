package watch

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/store/manifest"
)

// hostile fills a directory with what commits of other people may bring.
func hostile(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "m")
	put(t, dir, map[string]string{
		"good.yaml": services("good"), "sub/deep.yml": services("deep"), "notes.txt": "no", ".hidden.yaml": "no", "sub/.git/x.yaml": "no",
		"#draft.yaml#": "no", "../secret.yaml": "root:x:0:0", "../away/other.yaml": services("other"),
	})
	sparse, err := os.Create(filepath.Join(dir, "sparse.yaml"))
	must(t, err)
	must(t, sparse.Truncate(20<<30))
	must(t, sparse.Close())
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo.yaml"), 0o600))
	must(t, unix.Mknod(filepath.Join(dir, "socket.yaml"), unix.S_IFSOCK|0o600, 0))
	for name, to := range map[string]string{
		"out.yaml": "../secret.yaml", "passwd.yaml": "/etc/passwd", "nowhere.yaml": "missing", "loop.yaml": "loop.yaml", "zero.yaml": "/dev/zero",
		"inside.yaml": "notes.txt", "away": "../away", "again": "sub",
	} {
		must(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	return dir
}

// once returns what Once gives of a path: contents, and problems in words.
func once(t *testing.T, o Once, path string) (files map[string]string, problems []string) {
	t.Helper()
	files = map[string]string{}
	err := o.Each([]string{path}, func(name string, data []byte, refused *manifest.Problem) error {
		if refused != nil {
			problems = append(problems, refused.String())
		} else {
			files[name] = string(data)
		}
		return nil
	})
	must(t, err)
	return files, problems
}

// A directory that is read once is the directory that is watched: the same files, and the same
// words about those that are not read.
func TestOnceIsWhatIsWatched(t *testing.T) {
	dir := hostile(t)
	h := start(t, dir, nil)
	s := h.next()
	files, problems := once(t, Once{}, dir)
	for i, p := range problems {
		problems[i] = strings.TrimPrefix(p, dir+"/")
	}
	slices.Sort(problems)
	var watched []string
	for _, p := range s.Problems {
		text := strings.TrimPrefix(p.String(), dir+"/")
		if strings.HasPrefix(text, "inside.yaml") {
			continue // read, and no manifest
		}
		watched = append(watched, strings.TrimSuffix(text, "; there is no earlier good content of it"))
	}
	slices.Sort(watched)
	if !slices.Equal(problems, watched) {
		t.Errorf("read once:\n%s\nwatched:\n%s", strings.Join(problems, "\n"), strings.Join(watched, "\n"))
	}
	if len(problems) != 8 {
		t.Errorf("%d problems, want sparse, fifo, socket, out, passwd, nowhere, loop and zero", len(problems))
	}
	for _, name := range []string{"good.yaml", "sub/deep.yml", "inside.yaml"} {
		if _, ok := files[filepath.Join(dir, name)]; !ok {
			t.Errorf("%s is not read", name)
		}
	}
	if len(files) != 3 {
		t.Errorf("%d files are read: %v", len(files), files)
	}
	flat, _ := once(t, Once{Flat: true}, dir)
	if len(flat) != 2 {
		t.Errorf("flat, %d files are read: %v", len(flat), flat)
	}
}

// A file that is named is bounded too, and nothing is waited for.
func TestOnceOfFiles(t *testing.T) {
	dir := hostile(t)
	for name, want := range map[string]string{
		"sparse.yaml": "more than the limit of 67108864; split it",
		"fifo.yaml":   "not a file but a FIFO; skipped",
		"socket.yaml": "not a file but a socket; skipped",
		"zero.yaml":   "not a file but a device; skipped",
	} {
		if _, problems := once(t, Once{}, filepath.Join(dir, name)); len(problems) != 1 || !strings.HasSuffix(problems[0], want) {
			t.Errorf("%s: %q, want %q", name, problems, want)
		}
	}
	if files, _ := once(t, Once{}, filepath.Join(dir, "out.yaml")); len(files) != 1 {
		t.Error("a link that is named itself is not followed")
	}
	if files, _ := once(t, Once{Stdin: strings.NewReader("x")}, Stdin); files["stdin"] != "x" {
		t.Errorf("standard input is %q", files)
	}
	endless := io.MultiReader(strings.NewReader("x"), zeros{})
	if _, problems := once(t, Once{Stdin: endless, Bytes: 1 << 10}, Stdin); len(problems) != 1 || !strings.Contains(problems[0], "more than the limit of 1024") {
		t.Errorf("endless standard input: %q", problems)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A shell's <(command) is a pipe that this process has open already.
func TestOnceOfPipes(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	go func() { _, _ = io.WriteString(w, "piped"); _ = w.Close() }()
	path := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if files, problems := once(t, Once{}, path); files[path] != "piped" {
		t.Errorf("%q, problems %q", files, problems)
	}
}
