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
	"appliance/node/facts.go": "it sets the limit of the handles",
	"appliance/node/watch.go": "a stop closes the subscription",
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
var measures = regexp.MustCompile(`^appliance/bench/|^appliance/soak/load_test\.go$|bench_test\.go$|figures_test\.go$`)

// bounded are functions that end a wait, with the argument that is its length; time.Now().Add makes a deadline.
var bounded = map[string]int{
	"time.Sleep": 0, "time.After": 0, "time.NewTimer": 0, "time.AfterFunc": 0, "netlab.Within": 0, "Within": 0, "netlab.Eventually": 1,
	"context.WithTimeout": 1, "context.WithTimeoutCause": 1, "net.DialTimeout": 2, "time.Now().Add": 0,
}

// timeouts match the types that wait for as long as their field Timeout sets.
var timeouts = regexp.MustCompile(`^(http\.Client|net\.Dialer|dns\.Client)$`)

// TestRealTimeHasAReason: what must come is awaited for a minute at least, because a busy machine takes its time. A test
// waits less for what must not come, and states what. Nor is an upper bound of the time that something takes asserted. Polling and
// retries need no reason, and a bubble of testing/synctest has no real time.
func TestRealTimeHasAReason(t *testing.T) {
	fset, all := allSources(t)
	constants := constantsOf(fset, all)
	for _, s := range all {
		text := readText(t, s.path)
		if !s.test || measures.MatchString(s.path) || strings.Contains(text, "synctest") || strings.Contains(text, "bubble(") {
			continue
		}
		lines := strings.Split(text, "\n")
		refuse := func(n ast.Node, what string) {
			line := fset.Position(n.Pos()).Line
			if !strings.Contains(lines[line-1], realTime) && !strings.Contains(lines[line-2], realTime) {
				t.Errorf("%s: %s, or give the reason: %q", fset.Position(n.Pos()), what, realTime+"...")
			}
		}
		lengthOf := func(e ast.Expr) (time.Duration, bool) { return durationOf(textOf(fset, e), constants[s.pkg]) }
		loops, retries := 0, 0
		measured := map[string]bool{} // variables that have how long something took
		var visit func(n ast.Node) bool
		visit = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				clear(measured)
			case *ast.ForStmt, *ast.RangeStmt:
				if loop, is := n.(*ast.ForStmt); is && loop.Cond != nil { // it ends the loop, and asserts nothing
					children := childrenOf(loop)
					children = slices.DeleteFunc(children, func(child ast.Node) bool { return child == loop.Cond })
					loops++
					for _, child := range children {
						ast.Inspect(child, visit)
					}
					loops--
					return false
				}
				loops++
				for _, child := range childrenOf(n) {
					ast.Inspect(child, visit)
				}
				loops--
				return false
			case *ast.AssignStmt:
				for i, value := range n.Rhs {
					if took.MatchString(textOf(fset, value)) && i < len(n.Lhs) {
						measured[textOf(fset, n.Lhs[i])] = true
					}
				}
			case *ast.BinaryExpr:
				long, bound := n.X, n.Y
				switch n.Op {
				case token.LSS, token.LEQ:
					long, bound = n.Y, n.X
				case token.GTR, token.GEQ:
				default:
					return true
				}
				if text := textOf(fset, long); took.MatchString(text) || measured[text] {
					if d, constant := lengthOf(bound); !constant || d < time.Minute {
						refuse(n, "a busy machine takes longer: assert what came, not when")
					}
				}
			case *ast.CompositeLit:
				if n.Type == nil || !timeouts.MatchString(textOf(fset, n.Type)) {
					return true
				}
				for _, e := range n.Elts {
					if retries > 0 {
						break
					}
					if field, is := e.(*ast.KeyValueExpr); is && textOf(fset, field.Key) == "Timeout" {
						if d, constant := lengthOf(field.Value); constant && d < time.Minute {
							refuse(field, "wait a minute for what must come")
						}
					}
				}
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
				d, constant := lengthOf(n.Args[i])
				polls := constant && (retries > 0 && name != "time.Sleep" || loops+retries > 0 && !strings.HasSuffix(name, "Within") && d <= 100*time.Millisecond)
				if !polls && (name == "time.Sleep" || constant && 0 < d && d < time.Minute) {
					refuse(n, "wait for a condition, or a minute for what must come")
				}
			}
			return true
		}
		ast.Inspect(s.file, visit)
	}
}

// took matches how long something took until now.
var took = regexp.MustCompile(`^(time\.Since\(.*\)|time\.Now\(\)\.Sub\(.*\))$`)

// constantsOf are the durations that constants of each package have.
func constantsOf(fset *token.FileSet, all []source) map[string]map[string]time.Duration {
	of := map[string]map[string]time.Duration{}
	for range 2 { // one may be made of another
		for _, s := range all {
			if of[s.pkg] == nil {
				of[s.pkg] = map[string]time.Duration{}
			}
			ast.Inspect(s.file, func(n ast.Node) bool {
				decl, is := n.(*ast.GenDecl)
				if !is || decl.Tok != token.CONST {
					return true
				}
				for _, spec := range decl.Specs {
					values := spec.(*ast.ValueSpec)
					for i, value := range values.Values {
						if d, is := durationOf(textOf(fset, value), of[s.pkg]); is {
							of[s.pkg][values.Names[i].Name] = d
						}
					}
				}
				return true
			})
		}
	}
	return of
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

var duration = regexp.MustCompile(`^(?:(\d+|[a-zA-Z]\w*) ?\* ?)?(?:time\.(Microsecond|Millisecond|Second|Minute|Hour)|([a-zA-Z]\w*))$`)

// durationOf reads an expression as 20*time.Millisecond, or 2*patience with a constant.
func durationOf(text string, constants map[string]time.Duration) (d time.Duration, is bool) {
	found := duration.FindStringSubmatch(text)
	if found == nil {
		return 0, false
	}
	unit, is := constants[found[3]]
	if found[3] == "" {
		unit, is = map[string]time.Duration{"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[found[2]], true
	}
	n, err := strconv.Atoi(cmp.Or(found[1], "1"))
	return time.Duration(n) * unit, is && err == nil
}
