package svcctl_test

import (
	"go/ast"
	"go/printer"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	"appliance/node/handle.go": "it sets the limit of the handles",
	"appliance/node/watch.go":  "a stop closes the subscription",
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
