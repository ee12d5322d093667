package sidecar

import (
	"errors"
	"fmt"
	"math/big"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// An expression computes a resource of a sidecar from those of other containers:
//
//	sum    = product { ("+" | "-") product }
//	product = value { ("*" | "/") value }
//	value  = quantity [ "%" ] | "cpu" | "memory" | ("max" | "min") "(" sum "," sum ")" | "(" sum ")"
//
// The names are the resources of the targets: CPU in cores, memory in bytes. Quantities are those of Kubernetes. There is no sign before a value.

// amounts of the targets. An expression that names one that is missing has no result.
type targets struct{ cpu, memory *big.Rat }

// expr is a parsed expression. Its result is nil if it names an amount that is missing.
type expr func(targets) (*big.Rat, error)

var errDivision = errors.New("division by 0")

// parseExpr parses an expression.
func parseExpr(text string) (expr, error) {
	p := &exprParser{rest: text}
	e, err := p.sum()
	if err == nil && p.peek() != "" {
		err = fmt.Errorf("%.20q is not expected", p.rest)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// mostDepth bounds how deep parentheses may be nested.
const mostDepth = 20

type exprParser struct {
	rest  string
	depth int
}

// peek is the first character that is no space. Empty at the end.
func (p *exprParser) peek() string {
	p.rest = strings.TrimLeft(p.rest, " \t\n")
	if p.rest == "" {
		return ""
	}
	return p.rest[:1]
}

// take skips a character if it is the next one.
func (p *exprParser) take(want string) bool {
	if p.peek() != want {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *exprParser) sum() (expr, error) {
	if p.depth++; p.depth > mostDepth {
		return nil, errors.New("too many parentheses")
	}
	defer func() { p.depth-- }()
	return p.chain(p.product, map[string]func(a, b *big.Rat) (*big.Rat, error){
		"+": func(a, b *big.Rat) (*big.Rat, error) { return new(big.Rat).Add(a, b), nil },
		"-": func(a, b *big.Rat) (*big.Rat, error) { return new(big.Rat).Sub(a, b), nil },
	})
}

func (p *exprParser) product() (expr, error) {
	return p.chain(p.value, map[string]func(a, b *big.Rat) (*big.Rat, error){
		"*": func(a, b *big.Rat) (*big.Rat, error) { return new(big.Rat).Mul(a, b), nil },
		"/": func(a, b *big.Rat) (*big.Rat, error) {
			if b.Sign() == 0 {
				return nil, errDivision
			}
			return new(big.Rat).Quo(a, b), nil
		},
	})
}

// chain parses operands with operators between them, from left to right.
func (p *exprParser) chain(operand func() (expr, error), operators map[string]func(a, b *big.Rat) (*big.Rat, error)) (expr, error) {
	left, err := operand()
	for err == nil {
		operate, is := operators[p.peek()]
		if !is {
			return left, nil
		}
		p.rest = p.rest[1:]
		var right expr
		right, err = operand()
		left = both(left, right, operate)
	}
	return nil, err
}

// both applies an operation to two results, if there are two.
func both(left, right expr, operate func(a, b *big.Rat) (*big.Rat, error)) expr {
	return func(t targets) (*big.Rat, error) {
		a, err := left(t)
		if err != nil || a == nil {
			return nil, err
		}
		b, err := right(t)
		if err != nil || b == nil {
			return nil, err
		}
		return operate(a, b)
	}
}

func (p *exprParser) value() (expr, error) {
	if p.take("(") {
		return p.closed(p.sum())
	}
	p.peek()
	end := strings.IndexFunc(p.rest, func(r rune) bool { return strings.ContainsRune("+-*/(), \t\n%", r) })
	if end < 0 {
		end = len(p.rest)
	}
	word := p.rest[:end]
	p.rest = p.rest[end:]
	switch word {
	case "":
		return nil, errors.New("a value is missing")
	case "cpu":
		return func(t targets) (*big.Rat, error) { return t.cpu, nil }, nil
	case "memory":
		return func(t targets) (*big.Rat, error) { return t.memory, nil }, nil
	case "max", "min":
		return p.pick(word)
	}
	quantity, err := resource.ParseQuantity(word)
	if err != nil {
		return nil, fmt.Errorf("%.20q is neither a quantity, nor cpu, memory, max or min", word)
	}
	number := ratOf(quantity)
	if p.take("%") {
		number.Quo(number, big.NewRat(100, 1))
	}
	return func(targets) (*big.Rat, error) { return number, nil }, nil
}

func (p *exprParser) pick(word string) (expr, error) {
	if !p.take("(") {
		return nil, fmt.Errorf("%s needs two values in parentheses", word)
	}
	left, err := p.sum()
	if err != nil {
		return nil, err
	}
	if !p.take(",") {
		return nil, fmt.Errorf("%s needs two values in parentheses", word)
	}
	right, err := p.sum()
	if err != nil {
		return nil, err
	}
	return p.closed(both(left, right, func(a, b *big.Rat) (*big.Rat, error) {
		if (a.Cmp(b) > 0) == (word == "max") {
			return a, nil
		}
		return b, nil
	}), nil)
}

func (p *exprParser) closed(e expr, err error) (expr, error) {
	if err == nil && !p.take(")") {
		err = errors.New("a parenthesis is not closed")
	}
	return e, err
}

func ratOf(q resource.Quantity) *big.Rat {
	number, _ := new(big.Rat).SetString(q.AsDec().String())
	return number
}
