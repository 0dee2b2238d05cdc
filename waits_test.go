package svcctl_test

import (
	"cmp"
	"go/ast"
	"go/printer"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What is called outside of the process may never answer: another program, the kernel's queue of another program, the
// network. Such a call has a limit, or ends with a stop, and nobody waits for a lock meanwhile. These tests hold what
// can be read off the calls; conns have deadlines where they are made.

// unlimited are functions that wait without a limit, and what to use instead.
var unlimited = map[string]*regexp.Regexp{
	"a context, or DialTimeout":                   regexp.MustCompile(`^(net\.Dial|tls\.Dial(WithDialer)?|net\.DialTCP)$`),
	"a net.Resolver with a context":               regexp.MustCompile(`^net\.(Lookup\w+|Resolve(TCP|UDP|IP)Addr)$`),
	"http.NewRequestWithContext and a Client":     regexp.MustCompile(`^http\.(Get|Head|Post|PostForm)$`),
	"exec.CommandContext":                         regexp.MustCompile(`^exec\.Command$`),
	"the handle of appliance/node, which has one": regexp.MustCompile(`^(netlink\.NewHandle\w*|nl\.(Subscribe\w*|GetNetlinkSocketAt))$`),
	"handover.Notify":                             regexp.MustCompile(`^daemon\.SdNotify\w*$`),
}

// waitUnless are system calls that wait unless they have one of some flags.
var waitUnless = map[string]*regexp.Regexp{
	"MSG_DONTWAIT":    regexp.MustCompile(`^(unix|syscall)\.(Send(to|msg\w*)|Recv(from|msg\w*))$`),
	"LOCK_NB|LOCK_UN": regexp.MustCompile(`^(unix|syscall)\.Flock$`), // to unlock waits for nothing
}

// limited are files that may call what is unlimited, with the reason.
var limited = map[string]string{
	"appliance/node/queries.go": "it sets the limit of the handles",
	"appliance/node/watch.go":   "a stop closes the subscription",
}

// forTests are packages that tests and examples use alone.
func forTests(pkg string) bool {
	return pkg == "appliance/netlab" || strings.HasPrefix(pkg, "appliance/test/") || strings.HasPrefix(pkg, "nft/nfttest/") || strings.HasPrefix(pkg, "examples/") || strings.HasPrefix(pkg, ".ci/")
}

func TestCallsOutsideHaveLimits(t *testing.T) {
	fset, all := sources(t)
	excused := map[string]bool{}
	for _, s := range all {
		if s.test || forTests(s.pkg) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			name := textOf(fset, call.Fun)
			for instead, functions := range unlimited {
				switch _, may := limited[s.path]; {
				case !functions.MatchString(name):
				case may:
					excused[s.path] = true
				default:
					t.Errorf("%s: %s may wait for ever: use %s", fset.Position(n.Pos()), name, instead)
				}
			}
			for flags, functions := range waitUnless {
				one := regexp.MustCompile(flags)
				has := func(e ast.Expr) bool { return one.MatchString(textOf(fset, e)) }
				if functions.MatchString(name) && !slices.ContainsFunc(call.Args, has) {
					t.Errorf("%s: %s may wait for ever: give it %s", fset.Position(n.Pos()), name, flags)
				}
			}
			return true
		})
	}
	for path := range limited {
		if !excused[path] {
			t.Errorf("%s is listed and needs no excuse", path)
		}
	}
}

// outside are methods and functions that wait for others, by their names.
var outside = regexp.MustCompile(`^(Dial(Context|Timeout|TCP)|Accept\w*|ReadFrom\w*|WriteTo(UDP\w*|Unix)?|Exchange\w*|Lookup(Host|IP|Addr|NetIP)|RoundTrip|SdNotify|Notify)$`)

// TestNoLockOverCallsOutside looks at calls between Lock and Unlock, or to the end of the block, of one function.
func TestNoLockOverCallsOutside(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if s.test || forTests(s.pkg) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			block, is := n.(*ast.BlockStmt)
			if !is {
				return true
			}
			held := false
			for _, statement := range block.List {
				switch lock := lockOf(statement); {
				case lock == "Lock" || lock == "RLock":
					held = true
				case lock != "":
					held = false
				case held:
					for _, call := range callsIn(statement) {
						if selector, is := call.Fun.(*ast.SelectorExpr); is && outside.MatchString(selector.Sel.Name) {
							t.Errorf("%s: %s is called with a lock held", fset.Position(call.Pos()), textOf(fset, call.Fun))
						}
					}
				}
			}
			return true
		})
	}
}

// lockOf is Lock, RLock, Unlock or RUnlock of a statement that calls one of them on anything.
func lockOf(statement ast.Stmt) string {
	if e, is := statement.(*ast.ExprStmt); is {
		if call, is := e.X.(*ast.CallExpr); is && len(call.Args) == 0 {
			if selector, is := call.Fun.(*ast.SelectorExpr); is && slices.Contains([]string{"Lock", "RLock", "Unlock", "RUnlock"}, selector.Sel.Name) {
				return selector.Sel.Name
			}
		}
	}
	return ""
}

// callsIn are the calls that a statement makes before it ends: neither those of functions that it defines, nor what it
// defers or starts.
func callsIn(statement ast.Stmt) (calls []*ast.CallExpr) {
	ast.Inspect(statement, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.DeferStmt, *ast.GoStmt:
			return false
		case *ast.CallExpr:
			calls = append(calls, n)
		}
		return true
	})
	return calls
}

func textOf(fset *token.FileSet, e ast.Expr) string {
	var b strings.Builder
	_ = printer.Fprint(&b, fset, e) // to a Builder
	return b.String()
}

// realTime begins the comment of a wait in a test: what must not happen meanwhile, or what has to take that long.
const realTime = "// real time: "

// measures matches files that only measure.
var measures = regexp.MustCompile(`^appliance/bench/|bench_test\.go$|figures_test\.go$`)

// bounded are functions that end a wait, with the argument that is its length.
var bounded = map[string]int{"time.Sleep": 0, "time.After": 0, "netlab.Within": 0, "Within": 0, "context.WithTimeout": 1}

// TestRealTimeHasAReason: what must come is awaited for a minute at least, because a busy machine takes its time. A test
// waits less for what must not come, and states what. Polling and
// retries need no reason, and a bubble of testing/synctest has no real time.
func TestRealTimeHasAReason(t *testing.T) {
	fset, all := allSources(t)
	for _, s := range all {
		text := readText(t, s.path)
		if !s.test || measures.MatchString(s.path) || strings.Contains(text, "synctest") || strings.Contains(text, "bubble(") {
			continue
		}
		lines := strings.Split(text, "\n")
		loops, retries := 0, 0
		var visit func(n ast.Node) bool
		visit = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				loops++
				for _, child := range childrenOf(n) {
					ast.Inspect(child, visit)
				}
				loops--
				return false
			case *ast.CallExpr:
				name := textOf(fset, n.Fun)
				if name == "eventually" {
					retries++
					for _, arg := range n.Args {
						ast.Inspect(arg, visit)
					}
					retries--
					return false
				}
				i, is := bounded[name]
				if !is || len(n.Args) <= i {
					return true
				}
				d, constant := durationOf(textOf(fset, n.Args[i]))
				polls := constant && (retries > 0 && name != "time.Sleep" || loops+retries > 0 && !strings.HasSuffix(name, "Within") && d <= 100*time.Millisecond)
				line := fset.Position(n.Pos()).Line
				if !polls && (name == "time.Sleep" || constant && d < time.Minute) &&
					!strings.Contains(lines[line-1], realTime) && !strings.Contains(lines[line-2], realTime) {
					t.Errorf("%s: wait for a condition, or a minute for what must come, or give the reason: %q", fset.Position(n.Pos()), realTime+"...")
				}
			}
			return true
		}
		ast.Inspect(s.file, visit)
	}
}

func childrenOf(n ast.Node) (children []ast.Node) {
	ast.Inspect(n, func(child ast.Node) bool {
		if child != nil && child != n {
			children = append(children, child)
		}
		return child == n
	})
	return children
}

var duration = regexp.MustCompile(`^(?:(\d+) ?\* ?)?time\.(Microsecond|Millisecond|Second|Minute|Hour)$`)

// durationOf reads an expression as 20*time.Millisecond.
func durationOf(text string) (d time.Duration, is bool) {
	found := duration.FindStringSubmatch(text)
	if found == nil {
		return 0, false
	}
	n, err := strconv.Atoi(cmp.Or(found[1], "1"))
	unit := map[string]time.Duration{"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[found[2]]
	return time.Duration(n) * unit, err == nil
}
