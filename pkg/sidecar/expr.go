package sidecar

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// targets are the amounts of the containers from which an expression computes a resource of a sidecar: CPU in cores,
// memory in bytes. Nil is an amount that is missing.
type targets struct{ cpu, memory *big.Rat }

// expr is a parsed expression. Its result is nil if it names an amount that is missing.
type expr func(targets) (*big.Rat, error)

var (
	errDivision = errors.New("division by 0")
	errSyntax   = errors.New("must be made of quantities, percentages, cpu, memory, + - * /, parentheses, max(A, B) and min(A, B)")
)

// operators of two values. A quotient by 0 is an error before.
var operators = map[string]func(into, a, b *big.Rat) *big.Rat{
	"+": (*big.Rat).Add, "-": (*big.Rat).Sub, "*": (*big.Rat).Mul, "/": (*big.Rat).Quo,
	"max": func(_, a, b *big.Rat) *big.Rat { return slices.MaxFunc([]*big.Rat{a, b}, (*big.Rat).Cmp) },
	"min": func(_, a, b *big.Rat) *big.Rat { return slices.MinFunc([]*big.Rat{a, b}, (*big.Rat).Cmp) },
}

// word matches a name, or a quantity of Kubernetes with its percent sign.
var word = regexp.MustCompile(`[^-+*/(), \t\n%]+(\s*%)?`)

// parseExpr parses an expression such as max(cpu*50%, 50m). It is one of Go when each quantity has a name.
func parseExpr(text string) (expr, error) {
	numbers := map[string]*big.Rat{"cpu": nil, "memory": nil}
	var err error
	named := word.ReplaceAllStringFunc(strings.ReplaceAll(text, "\n", " "), func(word string) string {
		if slices.Contains([]string{"cpu", "memory", "max", "min"}, word) {
			return word
		}
		amount, isPercent := strings.CutSuffix(word, "%")
		quantity, wrong := resource.ParseQuantity(strings.TrimSpace(amount))
		if wrong != nil {
			err = fmt.Errorf("%.20q is neither a quantity, nor cpu, memory, max or min", amount)
			return word
		}
		name, number := fmt.Sprintf("n%d", len(numbers)), ratOf(quantity)
		if isPercent {
			number.Quo(number, big.NewRat(100, 1))
		}
		numbers[name] = number
		return name
	})
	if err != nil {
		return nil, err
	}
	parsed, err := parser.ParseExpr(named)
	if err != nil || strings.Contains(text, "//") || strings.Contains(text, "/*") { // Go has comments
		return nil, errSyntax
	}
	if _, err := valueOf(parsed, numbers); err != nil {
		return nil, err
	}
	return func(t targets) (*big.Rat, error) {
		all := maps.Clone(numbers)
		all["cpu"], all["memory"] = t.cpu, t.memory
		return valueOf(parsed, all)
	}, nil
}

// valueOf is the result of a part of an expression. It is nil if an amount that it names is.
func valueOf(part ast.Expr, numbers map[string]*big.Rat) (*big.Rat, error) {
	switch p := part.(type) {
	case *ast.ParenExpr:
		return valueOf(p.X, numbers)
	case *ast.Ident:
		if number, known := numbers[p.Name]; known {
			return number, nil
		}
	case *ast.BinaryExpr:
		return operate(p.Op.String(), p.X, p.Y, numbers)
	case *ast.CallExpr:
		if function, is := p.Fun.(*ast.Ident); is && len(p.Args) == 2 && !p.Ellipsis.IsValid() {
			return operate(function.Name, p.Args[0], p.Args[1], numbers)
		}
	}
	return nil, errSyntax
}

func operate(operator string, left, right ast.Expr, numbers map[string]*big.Rat) (*big.Rat, error) {
	a, err := valueOf(left, numbers)
	b, alsoErr := valueOf(right, numbers)
	do, known := operators[operator]
	switch err := errors.Join(err, alsoErr); {
	case err != nil:
		return nil, err
	case !known:
		return nil, errSyntax
	case a == nil || b == nil:
		return nil, nil
	case operator == "/" && b.Sign() == 0:
		return nil, errDivision
	}
	return do(new(big.Rat), a, b), nil
}

func ratOf(q resource.Quantity) *big.Rat {
	number, _ := new(big.Rat).SetString(q.AsDec().String())
	return number
}
